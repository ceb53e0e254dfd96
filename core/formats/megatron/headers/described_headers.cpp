#include "core/formats/megatron/headers/described_headers.hpp"

#include <algorithm>
#include <utility>

#include "core/base/capture.hpp"
#include "core/base/threads/workers.hpp"
#include "core/formats/headers/header_exchange.hpp"
#include "core/formats/headers/shared_headers.hpp"
#include "core/formats/megatron/report.hpp"

namespace reshard::megatron {

std::vector<ShardFacts> facts_of_all(Directory const& directory, Headers const& headers) {
  std::vector<KeySummary> keys;
  for (ShardHeader const& common : headers.commons) keys.push_back(summarize_keys(common));
  std::vector<ShardFacts> facts;
  for (std::size_t f = 0; f < directory.shards.size(); ++f)
    facts.push_back(facts_of(directory.shards[f], headers.sizes[headers.common_of[f]],
                             keys[headers.common_of[f]]));
  return facts;
}

DescribedHeaders::DescribedHeaders(Directory const& directory) {
  bool const complete =
      !directory.shards.empty() && std::ranges::none_of(directory.shards, [](Shard const& shard) {
        return shard.model_file.empty();
      });
  if (!complete || !read_alike(directory)) read_each(directory);
}

/// Files that are alike are compared and not parsed. False if one is damaged.
bool DescribedHeaders::read_alike(Directory const& directory) {
  auto const failed = capture([&] {
    Checkpoint read;
    for (Shard const& shard : directory.shards) read.files.push_back(shard.model_path());
    ShardHeaderReader reader(read.files.front(), false);
    SharedHeaders const packed =
        shared_headers(read, LoneReader(), [&](File const& file) { return reader.read(file); });
    alike_ = unpacked_headers(packed, directory.shards.size());
  });
  if (failed) return false;
  alike_.commons[alike_.common_of.front()].args = std::move(alike_.args);
  for (std::size_t s = 0; s < directory.shards.size(); ++s) of_shard_.push_back(&alike_[s]);
  facts_ = facts_of_all(directory, alike_);
  return true;
}

void DescribedHeaders::read_each(Directory const& directory) {
  each_.resize(directory.shards.size());
  std::vector<std::optional<Error>> failed(each_.size());
  overlapped(each_.size(), [&](std::size_t s) {
    Shard const& shard = directory.shards[s];
    if (shard.model_file.empty()) return;
    failed[s] =
        capture([&] { each_[s] = read_shard_header(File::open_for_reading(shard.model_path())); });
  });
  for (auto const& header : each_) of_shard_.push_back(header ? &*header : nullptr);
  for (auto& error : failed)
    if (error) damage_.push_back(std::move(*error));
  facts_ = shard_facts(directory, of_shard_);
}

}  // namespace reshard::megatron
