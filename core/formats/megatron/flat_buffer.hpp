#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "core/base/integers.hpp"

namespace reshard::megatron {

// The flat buffers in which Megatron's distributed optimizer holds the parameters of one model
// chunk of one rank. Source: megatron/core/distributed/param_and_grad_buffer.py, releases 0.5 to
// 0.19. A buffer is a list of buckets. Parameters are placed in it from the last one registered
// to the first. Files hold the buckets one after the other without the padding at their ends, so
// no position in a file depends on how many ranks share the buffer.

/// One parameter of a rank.
struct FlatParameter {
  Index elements = 0;
  bool own_bucket = false;  ///< an embedding that pipeline stages share (Megatron >= 0.6)
};

/// How a release places parameters.
struct FlatRule {
  Index bucket_elements = 0;  ///< a bucket ends behind the parameter that reaches it; 0: one bucket
  Index alignment = 64;       ///< of the start of a parameter in its bucket; 1 before Megatron 0.8
};

/// Where a parameter is.
struct FlatSlot {
  std::size_t bucket = 0;
  Index at = 0;  ///< its first element in the bucket
  friend bool operator==(FlatSlot const&, FlatSlot const&) = default;
};

/// Places of parameters in a buffer.
struct FlatLayout {
  std::vector<FlatSlot> slots;  ///< parallel to the parameters
  std::vector<Index> buckets;   ///< elements of each bucket, without padding at its end
  friend bool operator==(FlatLayout const&, FlatLayout const&) = default;

  /// Where a slot begins in the file that holds all buckets one after the other.
  Index in_file(FlatSlot const& slot) const;
};

/// Places parameters, given in order of registration, by a rule.
FlatLayout flat_layout(std::span<FlatParameter const> parameters, FlatRule const& rule);

/// Places parameters in buckets of known sizes. Nothing when they do not end where the buckets
/// do.
std::optional<FlatLayout> fitted_layout(std::span<FlatParameter const> parameters,
                                        std::span<Index const> buckets, Index alignment);

}  // namespace reshard::megatron
