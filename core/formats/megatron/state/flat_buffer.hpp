#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "core/base/tables/integers.hpp"

namespace reshard::megatron {

// The flat buffers of Megatron's distributed optimizer, with the parameters of one model chunk of
// one rank. Source: megatron/core/distributed/param_and_grad_buffer.py, releases 0.5 to 0.19. A
// buffer is a list of buckets. Parameters are placed in it from the last one registered to the
// first. Files hold the buckets one after the other without the padding at their ends, so no
// position in a file depends on the number of ranks that share the buffer.

/// One parameter of a rank.
struct FlatParameter {
  Index elements = 0;
  bool own_bucket = false;  ///< an embedding that pipeline stages share (Megatron >= 0.6)
};

/// The rule by which a release places parameters.
struct FlatRule {
  Index bucket_elements = 0;  ///< a bucket ends after the parameter that reaches this size; 0: one
                              ///< bucket
  Index alignment = 64;       ///< of the start of a parameter in its bucket; 1 before Megatron 0.8
};

/// The place of a parameter.
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

  /// The first element of a slot in a file with all buckets one after the other.
  Index in_file(FlatSlot const& slot) const;
};

/// Places parameters, given in order of registration, by a rule.
FlatLayout flat_layout(std::span<FlatParameter const> parameters, FlatRule const& rule);

/// Places parameters in buckets of known sizes. nullopt unless they end exactly where the buckets
/// end.
std::optional<FlatLayout> fitted_layout(std::span<FlatParameter const> parameters,
                                        std::span<Index const> buckets, Index alignment);

}  // namespace reshard::megatron
