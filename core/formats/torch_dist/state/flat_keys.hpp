#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"

namespace reshard::dcp {

// Keys of the distributed optimizer in the forms dp_reshardable, fully_sharded_bucket_space and
// dp_zero_gather_scatter.
// Source: megatron/core/optimizer/distrib_optimizer.py, releases 0.6 to 0.19.

/// The parts of a key that begins with "chained_1.optimizer.distributed.dp_group_idx_3.".
struct GroupKey {
  Index chain = 0;  ///< number of the optimizer: 0 dense weights, 1 experts
  Index group = 0;  ///< of ranks that share weights
  std::string_view rest;
};
std::optional<GroupKey> parse_group_key(std::string_view key);

/// The object of a group whose state was gathered.
inline constexpr std::string_view gathered_name = "param_state";

/// A tensor: "gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_2.exp_avg"; or, all
/// buckets end to end inside such an object, "param_state.gbuf_idx_0.dtype_(torch.bfloat16).param".
struct BucketKey {
  GroupKey group;
  Index buffer = 0;
  std::string weights;  ///< dtype of the weights in the buffer, "bfloat16"
  Index bucket = 0;
  bool joined = false;  ///< all buckets of the buffer
  std::string_view slot;
};
std::optional<BucketKey> parse_bucket_key(std::string_view key);

/// Settings of a group's optimizer, an object: "optimizer/shard_0_1" gives "optimizer".
std::string_view settings_name(GroupKey const& key);

}  // namespace reshard::dcp
