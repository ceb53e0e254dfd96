#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/files/file.hpp"
#include "core/base/hash/crc64.hpp"
#include "core/containers/hdf5/child/check_found.hpp"
#include "core/containers/hdf5/container.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::hdf5 {

/// What a call refuses, as "kind: sentence"; "" when it does not.
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (Error const& error) {
    return fmt::format("{}: {}", exit_code(error.kind()), error.sentence());
  }
  return "";
}

inline void expect_says(std::string const& sentence, std::vector<std::string> const& words) {
  for (std::string const& word : words)
    EXPECT_NE(sentence.find(word), std::string::npos) << "no '" << word << "' in: " << sentence;
}

/// Tensors and objects of one container, and how a container of them comes to be: the frame, then
/// the data, then the end.
struct Sample {
  std::vector<DatasetSpec> datasets;
  std::vector<ObjectSpec> objects;
  RootAttributes attributes;

  ContainerPlan plan(std::uint64_t alignment_bytes = 4096) const {
    return plan_container(datasets, objects, attributes, alignment_bytes);
  }

  /// [begin, end) of every dataset, tensors first; those without bytes too.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges(ContainerPlan const& planned) const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> all;
    for (std::size_t i = 0; i < datasets.size(); ++i) {
      std::uint64_t const begin = planned.offset_bytes.at(i);
      all.emplace_back(begin, begin + tensor_bytes(datasets[i].dtype, datasets[i].shape).value());
    }
    for (std::size_t i = 0; i < objects.size(); ++i) {
      std::uint64_t const begin = planned.object_offset_bytes.at(i);
      all.emplace_back(begin, begin + objects[i].size_bytes);
    }
    return all;
  }

  static std::vector<std::byte> bytes_of_range(std::size_t which, std::uint64_t count) {
    std::vector<std::byte> bytes(count);
    for (std::size_t i = 0; i < count; ++i)
      bytes[i] = static_cast<std::byte>((i * 7 + which * 31 + 1) % 251);
    return bytes;
  }

  /// Writes all but the end; returns the digests.
  std::vector<std::uint64_t> write(std::filesystem::path const& path,
                                   ContainerPlan const& planned) const {
    File const file = File::create(path);
    file.resize(planned.size_bytes);
    for (FileSegment const& piece : planned.frame)
      file.write_at(piece.offset_bytes, std::as_bytes(std::span(piece.bytes)));
    std::vector<std::uint64_t> digests;
    for (auto const& [begin, end] : ranges(planned)) {
      auto const bytes = bytes_of_range(digests.size(), end - begin);
      file.write_at(begin, bytes);
      digests.push_back(crc64(bytes));
    }
    return digests;
  }

  /// The last frame over the first one.
  void finish(std::filesystem::path const& path, std::span<std::uint64_t const> digests) const {
    File const file = File::open_for_writing(path);
    for (FileSegment const& piece : plan().frame)
      file.write_at(piece.offset_bytes, std::vector<std::byte>(piece.bytes.size()));
    for (FileSegment const& piece : finished_frame(datasets, objects, attributes, digests))
      file.write_at(piece.offset_bytes, std::as_bytes(std::span(piece.bytes)));
  }

  std::vector<std::uint64_t> write_all(std::filesystem::path const& path) const {
    auto const digests = write(path, plan());
    finish(path, digests);
    return digests;
  }
};

inline Sample small_sample() {
  return {
      .datasets = {{"model.layers.0.w", DType::bf16, {6, 4}, {"out", "in"}, "layer 0:2"},
                   {"a/b%2F%", DType::f32, {3}, {"hidden"}},
                   {"scalar", DType::f64, {}},
                   {"empty", DType::i64, {4, 0, 2}, {"x", "y", "z"}},
                   {"größe 重み", DType::f4, {3, 4}},
                   {"sixes", DType::f6_e2m3, {2, 8}},
                   {"big", DType::u8, {200'000}}},
      .objects = {{"rng/0", 77}, {"nothing", 0}},
      .attributes = {
          {"model", "{\"a\": 1}\n"}, {"softwareVersion", "1.2"}, {"título", "né"}, {"void", ""}}};
}

}  // namespace reshard::hdf5
