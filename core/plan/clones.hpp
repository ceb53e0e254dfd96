#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/data_layout.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/round.hpp"

namespace reshard {

/// Shorter runs of one region are not looked at: it has many of them, and they are rarely
/// neighbours of others (as the rows of q, k and v are in one stored tensor).
inline constexpr std::uint64_t least_apart_bytes = std::uint64_t{16} << 10;

/// Bytes [from, +bytes) of what `regions` bring from one place of a source file to one of a target
/// file, where nothing changes on the way: neighbours at both ends are one stretch. By target file
/// and offset.
///
/// Regions of many runs below least_apart_bytes give nothing, and neither do those of files from
/// `rules.source_files` on (views).
std::vector<CloneExtent> straight_stretches(std::span<Region const> regions,
                                            std::span<ByteDim const> dims, CloneRules const& rules);

/// The parts of these stretches that a file system can clone and that are worth a call: source
/// offset, target offset and length are multiples of rules.block_bytes.
///
///   blocks of 4096: source [8292, 208292), target [4196, 204196): [12288, 204800) to [8192,
///   200704) source [8292, 208292), target [4200, 204200): nothing, the offsets differ by no whole
///   blocks
std::vector<CloneExtent> whole_blocks(std::span<CloneExtent const> stretches,
                                      CloneRules const& rules);

/// The parts of `extents` whose bytes in the target files no clone has. Pre: both are sorted by
/// file and offset, and the clones do not overlap.
std::vector<Extent> without_clones(std::span<Extent const> extents,
                                   std::span<CloneExtent const> clones);

}  // namespace reshard
