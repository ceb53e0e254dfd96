#pragma once

#include <cstdint>
#include <vector>

#include "core/base/tables/byte_dim.hpp"
#include "core/device/copy_program.hpp"
#include "core/device/kernels/copy_descriptors.hpp"

namespace reshard {

/// A copy, or a part of one, for one kernel: within 4 GiB on each side, forwards in the target,
/// with less than 2^31 elements.
struct ChosenCopy {
  CopyVariant variant = CopyVariant::words;
  unsigned width = 1;
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint32_t from_start = 0;  ///< bytes below `from` that the copy reads, by dimensions with
                                 ///< negative strides in the source
  std::uint64_t run_bytes = 0;   ///< shifted only
  std::vector<ByteDim> levels;   ///< the fastest index first
  ByteDim group;                 ///< fours: how a group's elements follow each other
  ByteDim line;                  ///< tiles: along the source's fine direction
  ByteDim column;                ///< tiles: along the target's
  unsigned line_bits = 0;        ///< tiles: log2 of a tile's elements along a line
  unsigned column_bits = 0;
};

/// The kernels for a copy; none for an empty copy. The parts have no byte in common.
///
///   8 KiB runs at multiples of 16 bytes      words of 16
///   8 KiB runs from byte 6 on to byte 0      shifted, ends by elements of 2
///   every second of 4099 2-byte elements     fours of 2 for 4096 elements, words of 2 for 3
///   a 512 x 512 matrix of floats transposed  tiles of 4
std::vector<ChosenCopy> choose_kernels(CopyRequest const& request);

}  // namespace reshard
