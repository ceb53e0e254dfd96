#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/host_device.hpp"
#include "core/device/kernels/fast_division.hpp"
#include "core/device/program.hpp"

// Unrolled, a loop of one or two rounds costs more moves between registers than it saves; one of
// many rounds hides the time of its loads.
#if defined(__CUDA_ARCH__)
#define RESHARD_ROLLED_LOOP _Pragma("unroll 1")
#define RESHARD_LOOP_BY_FOURS _Pragma("unroll 4")
#else
#define RESHARD_ROLLED_LOOP
#define RESHARD_LOOP_BY_FOURS
#endif

namespace reshard {

// The input of the copy kernels. A launch's descriptors are from Launch::at on, in this order:
//
//   descriptors   Launch::descriptors times a RunsCopy or a TilesCopy
//   table         the number of the descriptor of each unit of work, or no_copy;
//                 rounded up to a multiple of 16 bytes
//   levels        CopyLevel, those of each descriptor in a row
//
// A unit is the work of one warp (runs) or one block (tiles). The table saves the search for its
// descriptor.
//
// Copies move bytes: a pair of packed 4-bit elements is one byte to them (the plan refuses cuts
// between the two).

/// The kernels; the element size is Launch::width.
enum class CopyVariant : std::uint8_t {
  words,    ///< single elements; 16, 8, 4, 2, 1 bytes
  fours,    ///< four elements for one computation of an index; 4, 2, 1 bytes
  shifted,  ///< long runs with different alignments of source and target: 16 bytes at a time, a
            ///< run's ends by 4, 2, 1 bytes
  tiles,    ///< transposes through shared memory; 16, 8, 4, 2, 1 bytes
  packed_tiles,  ///< tiles of elements of 2 or 1 bytes that can be read and written in words of
                 ///< four bytes
};

inline constexpr unsigned lanes_per_warp = 32;
inline constexpr unsigned warps_per_block = threads_per_block / lanes_per_warp;

/// A warp moves this many bytes: enough to amortise finding the descriptor, few enough that small
/// copies occupy many warps.
inline constexpr unsigned unit_bytes = 4096;

constexpr unsigned items_per_unit(CopyVariant variant, unsigned width) {
  if (variant == CopyVariant::shifted) return unit_bytes / 16;
  return unit_bytes / (variant == CopyVariant::fours ? 4 * width : width);
}

/// The table's entry for a warp without work.
inline constexpr std::uint32_t no_copy = 0xFFFFFFFFU;

// Within one descriptor, places are 32-bit distances from its `from` and `to`, the lowest places
// that it reads and writes; strides are 32-bit too, and negative ones wrap around. That makes an
// index cheap; larger copies are cut into several descriptors.

/// A dimension of a copy: an index and its strides in bytes. The index of the first level runs
/// fastest.
struct alignas(16) CopyLevel {
  std::uint32_t count = 1;
  FastDivisor divisor;  ///< by count
  std::uint32_t unused = 0;
  std::uint32_t from_stride = 0;
  std::uint32_t to_stride = 0;
  std::uint32_t unused_too[2] = {};
};
static_assert(sizeof(CopyLevel) == 32);

/// A copy for the kernels words, fours and shifted. Items are elements, groups of four elements, or
/// 16-byte words of the target.
struct alignas(16) RunsCopy {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::int64_t from_group = 0;  ///< fours: the distance of a group's elements
  std::int64_t to_group = 0;
  std::uint32_t from_start = 0;  ///< the distance of the first run from `from`, for dimensions with
                                 ///< negative strides in the source
  std::uint32_t items = 0;
  std::uint32_t first_unit = 0;
  std::uint32_t first_level = 0;
  std::uint32_t levels = 0;
  std::uint32_t run_bytes =
      0;  ///< shifted: of one run; level 0 counts the words that a run may touch
  std::uint64_t unused = 0;
};
static_assert(sizeof(RunsCopy) == 64);

/// A copy for the kernels that work by tiles: matrices of elements. A line is fine in the source, a
/// column in the target.
///
/// Level 0 counts the tiles along a line (the source's fine direction), level 1 those along a
/// column, the others matrices.
struct alignas(16) TilesCopy {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint32_t from_start = 0;
  std::uint32_t line_from = 0;  ///< one step along a line
  std::uint32_t line_to = 0;
  std::uint32_t column_from = 0;  ///< one step along a column
  std::uint32_t column_to = 0;
  std::uint32_t line_count = 0;  ///< elements of a line
  std::uint32_t column_count = 0;
  std::uint32_t first_unit = 0;
  std::uint32_t first_level = 0;
  std::uint32_t levels = 0;
  std::uint32_t line_bits = 0;  ///< a tile has 1 << line_bits elements of a line
  std::uint32_t column_bits = 0;
};
static_assert(sizeof(TilesCopy) == 64);

/// The launch argument of the kernels' functions.
struct CopyWork {
  std::byte const* descriptors = nullptr;
  std::uint32_t const* table = nullptr;
  CopyLevel const* levels = nullptr;
  std::byte const* from = nullptr;
  std::byte* to = nullptr;
};

constexpr std::uint64_t table_bytes(std::uint64_t units) {
  return (units * sizeof(std::uint32_t) + 15) / 16 * 16;
}

inline CopyWork copy_work(Launch const& launch, LaunchPlaces const& places) {
  bool const tiles = launch.kind == KernelKind::copy_tiles;
  std::uint64_t const units =
      tiles ? launch.blocks : std::uint64_t{launch.blocks} * warps_per_block;
  std::byte const* const descriptors = places.program + launch.at;
  std::byte const* const table =
      descriptors + launch.descriptors * (tiles ? sizeof(TilesCopy) : sizeof(RunsCopy));
  std::byte const* const levels = table + table_bytes(units);
  return {descriptors, reinterpret_cast<std::uint32_t const*>(table),
          reinterpret_cast<CopyLevel const*>(levels), places.from, places.to};
}

/// Splits items' numbers into indices: each level adds its stride to the two distances. The
/// quotient that remains is the index of the last level.
template <unsigned Depth>
RESHARD_HOST_DEVICE inline void add_levels(CopyLevel const* levels, unsigned count,
                                           std::uint32_t (&number)[Depth],
                                           std::uint32_t (&from)[Depth],
                                           std::uint32_t (&to)[Depth]) {
  if (count == 0) return;
  RESHARD_ROLLED_LOOP
  for (unsigned l = 0; l + 1 < count; ++l) {
    CopyLevel const level = levels[l];
    for (unsigned d = 0; d < Depth; ++d) {
      std::uint32_t const above = divide(number[d], level.divisor);
      std::uint32_t const index = number[d] - above * level.count;
      from[d] += index * level.from_stride;
      to[d] += index * level.to_stride;
      number[d] = above;
    }
  }
  CopyLevel const last = levels[count - 1];
  for (unsigned d = 0; d < Depth; ++d) {
    from[d] += number[d] * last.from_stride;
    to[d] += number[d] * last.to_stride;
  }
}

/// The items [first, end) of a copy: a warp's share.
struct UnitWork {
  RunsCopy copy;
  std::uint32_t first = 0;
  std::uint32_t end = 0;
};

RESHARD_HOST_DEVICE inline UnitWork unit_work(CopyWork const& work, std::uint32_t block,
                                              std::uint32_t thread, std::uint32_t unit_items) {
  std::uint32_t const unit = block * warps_per_block + thread / lanes_per_warp;
  std::uint32_t const index = work.table[unit];
  if (index == no_copy) return {};
  RunsCopy const copy = reinterpret_cast<RunsCopy const*>(work.descriptors)[index];
  std::uint32_t const first = (unit - copy.first_unit) * unit_items;
  return {copy, first, copy.items - first < unit_items ? copy.items : first + unit_items};
}

}  // namespace reshard
