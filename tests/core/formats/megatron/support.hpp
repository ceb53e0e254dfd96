#pragma once

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/files/file.hpp"
#include "core/base/hash/crc32.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/formats/megatron/headers/classify.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/megatron/writer.hpp"

namespace reshard::megatron {

/// A directory of its own for one test, removed afterwards.
class TempDirectory {
 public:
  TempDirectory() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("reshard-megatron-{}-{}", ::getpid(), counter++);
    std::filesystem::create_directories(path_);
  }
  TempDirectory(TempDirectory const&) = delete;
  TempDirectory& operator=(TempDirectory const&) = delete;
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  std::filesystem::path const& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void put_file(std::filesystem::path const& path, std::string_view text = "") {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// The sentence of the Error that `work` throws; "" with a test failure when it throws none.
inline std::string sentence_of(std::function<void()> const& work,
                               ErrorKind kind = ErrorKind::source) {
  try {
    work();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), kind) << error.sentence();
    return error.sentence();
  }
  ADD_FAILURE() << "expected an Error";
  return "";
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Every directory that Megatron needs for these sizes.
inline std::vector<ShardFacts> grid_of(MeshSizes const& sizes,
                                       NameStyle style = NameStyle::megatron) {
  std::vector<ShardFacts> facts;
  for (ShardPlace const& place : shard_places(sizes)) {
    ShardFacts fact;
    fact.name = format_shard_name(place, sizes, style);
    fact.numbers = *parse_shard_name(fact.name);
    facts.push_back(std::move(fact));
  }
  return facts;
}

inline std::vector<ShardFacts> named(std::vector<std::string> const& names) {
  std::vector<ShardFacts> facts;
  for (auto const& name : names) {
    ShardFacts fact;
    fact.name = name;
    fact.numbers = *parse_shard_name(name);
    facts.push_back(std::move(fact));
  }
  return facts;
}

inline std::vector<std::string> names_of(std::vector<ShardFacts> const& facts) {
  std::vector<std::string> names;
  for (auto const& fact : facts) names.push_back(fact.name);
  return names;
}

inline std::string mismatch_text(Classification const& found) {
  std::string all;
  for (auto const& mismatch : found.mismatches) all += mismatch.sentence + "\n";
  return all;
}

/// Writes a document as a torch file; storage i is filled with bytes of value i + 1.
inline void write_torch_file(std::filesystem::path const& path, pickle::Document document) {
  std::filesystem::create_directories(path.parent_path());
  auto const plan = plan_torch_file(document, path.stem().string());
  auto const file = File::create(path);
  file.resize(plan.size_bytes);
  std::vector<std::uint32_t> sums;
  for (std::size_t i = 0; i < plan.storages.size(); ++i) {
    std::vector<std::byte> const bytes(plan.storages[i].size_bytes, static_cast<std::byte>(i + 1));
    file.write_at(plan.storages[i].payload_offset_bytes, bytes);
    sums.push_back(crc32(bytes));
  }
  finish_torch_file(file, plan, sums);
}

}  // namespace reshard::megatron
