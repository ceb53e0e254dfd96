#pragma once

#include <optional>
#include <vector>

#include "core/base/error.hpp"
#include "core/formats/megatron/headers/classify.hpp"
#include "core/formats/megatron/headers/directory.hpp"
#include "core/formats/megatron/headers/shard_headers.hpp"

namespace reshard::megatron {

/// The facts that classify() asks for, of shards that all have a header.
std::vector<ShardFacts> facts_of_all(Directory const& directory, Headers const& headers);

/// The headers of all shards, for a report: shards may be damaged or lack their model file. Read
/// by one process.
class DescribedHeaders {
 public:
  explicit DescribedHeaders(Directory const& directory);
  DescribedHeaders(DescribedHeaders const&) = delete;
  DescribedHeaders& operator=(DescribedHeaders const&) = delete;

  /// By shard, null where there is none. Shards that are alike have the same one. The first has
  /// args.
  std::vector<ShardHeader const*> const& of_shard() const { return of_shard_; }
  std::vector<ShardFacts> const& facts() const { return facts_; }
  std::vector<Error> const& damage() const { return damage_; }  ///< of headers, by shard

 private:
  bool read_alike(Directory const& directory);
  void read_each(Directory const& directory);

  std::vector<ShardHeader const*> of_shard_;
  std::vector<ShardFacts> facts_;
  std::vector<Error> damage_;
  Headers alike_;                                 ///< where no shard is damaged
  std::vector<std::optional<ShardHeader>> each_;  ///< otherwise
};

}  // namespace reshard::megatron
