#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/data_layout.hpp"
#include "core/plan/cells/round.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// Shorter runs of regions with many runs are not considered: they are rarely neighbours of others
/// (as the rows of q, k and v are in one stored tensor).
inline constexpr std::uint64_t least_apart_bytes = std::uint64_t{16} << 10;

/// The contiguous ranges that `regions` copy unchanged from a source file to a target file; ranges
/// that are neighbours at both ends are joined. Sorted by target file and offset.
///
/// Without regions of many runs below least_apart_bytes and those of files from
/// `rules.source_files` on (views).
std::vector<CloneExtent> straight_stretches(std::span<Region const> regions,
                                            std::span<ByteDim const> dims, CloneRules const& rules);

/// The parts of these ranges that a file system can clone and that are worth a call: source offset,
/// target offset and length are multiples of rules.block_bytes.
///
///   blocks of 4096, source [8292, 208292):
///     target [4196, 204196): [12288, 204800) to [8192, 200704)
///     target [4200, 204200): none, the offsets do not differ by a multiple of 4096
std::vector<CloneExtent> whole_blocks(std::span<CloneExtent const> stretches,
                                      CloneRules const& rules);

/// `extents` without the target bytes of `clones`. Pre: both are sorted by file and offset, and the
/// clones do not overlap.
std::vector<Extent> without_clones(std::span<Extent const> extents,
                                   std::span<CloneExtent const> clones);

}  // namespace reshard
