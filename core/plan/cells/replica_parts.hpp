#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/plan.hpp"

namespace reshard {

/// Sorts the regions of one block of a tensor into parts that each write about `most_target_bytes`:
/// complete replicas, in the order of target files. The first part has all source bytes of the
/// block, which the others read again. A block without replicas, or with fewer bytes, is one part
/// and keeps its order. The regions' first_dim counts in `dims`.
std::vector<std::span<Region>> by_replicas(std::span<Region> members, std::span<ByteDim const> dims,
                                           std::uint64_t most_target_bytes);

}  // namespace reshard
