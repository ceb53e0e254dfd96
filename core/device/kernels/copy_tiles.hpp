#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/host_device.hpp"
#include "core/device/kernels/copy_descriptors.hpp"
#include "core/device/kernels/copy_memory.hpp"

namespace reshard {

/// Elements of a tile take at most this many bytes.
inline constexpr unsigned tile_bytes = 16384;

/// A tile has at most this many words along each side, one for each thread.
inline constexpr unsigned tile_side_words = threads_per_block;

/// Rows of a tile in shared memory are one word longer than needed: a column of it then lies in as
/// many banks as it has rows. The largest number of rows of a tile: the gaps of more would need
/// more memory than the tile.
constexpr unsigned tile_row_limit(unsigned width) {
  return width < 8 ? 256 : width == 8 ? 128 : 64;
}

constexpr unsigned tile_gap(unsigned word_bytes) { return word_bytes < 4 ? 4 / word_bytes : 1; }

/// Bytes of shared memory that a block needs for any tile.
inline constexpr unsigned tile_memory = tile_bytes + 1024;

/// A block's tile: its copy, how far it is from the copy's places, and how many elements of the
/// matrix there are from its corner on.
struct Tile {
  TilesCopy copy;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t lines = 0;    ///< elements along a line of the source
  std::uint32_t columns = 0;  ///< elements along a column, which is a line of the target
};

RESHARD_HOST_DEVICE inline Tile tile_of(CopyWork const& work, std::uint32_t block) {
  TilesCopy const copy = reinterpret_cast<TilesCopy const*>(work.descriptors)[work.table[block]];
  CopyLevel const* const levels = work.levels + copy.first_level;
  std::uint32_t const number = block - copy.first_unit;
  std::uint32_t const above = divide(number, levels[0].divisor);
  std::uint32_t const line = (number - above * levels[0].count) << copy.line_bits;
  std::uint32_t matrix[1] = {divide(above, levels[1].divisor)};
  std::uint32_t const column = (above - matrix[0] * levels[1].count) << copy.column_bits;
  std::uint32_t from[1] = {copy.from_start + line * copy.line_from + column * copy.column_from};
  std::uint32_t to[1] = {line * copy.line_to + column * copy.column_to};
  add_levels(levels + 2, copy.levels - 2, matrix, from, to);
  return {copy, from[0], to[0], copy.line_count - line, copy.column_count - column};
}

/// Transposes the Pack x Pack elements of Pack words of the same size: element j of word i becomes
/// element i of word j.
template <unsigned Pack, class Type>
RESHARD_HOST_DEVICE inline void transpose_words(Type const (&from)[Pack], Type (&to)[Pack]) {
  if constexpr (Pack == 1) {
    to[0] = from[0];
  } else {
    constexpr unsigned bits = sizeof(Type) * 8 / Pack;
    constexpr Type mask = (Type{1} << bits) - 1;
    for (unsigned j = 0; j < Pack; ++j) {
      to[j] = 0;
      for (unsigned i = 0; i < Pack; ++i) to[j] |= (from[i] >> (j * bits) & mask) << (i * bits);
    }
  }
}

/// The kernels tiles (Pack 1) and packed_tiles (Pack · Width = 4): a block reads a tile along the
/// source's fine direction and writes it along the target's. With Pack > 1 it reads words of Pack
/// elements, turns Pack x Pack elements around in registers, and writes words of Pack elements. In
/// shared memory, each line index has a row, in which the columns follow each other.
template <unsigned Width, unsigned Pack>
struct CopyTiles {
  /// Copies from the source to shared memory, before the barrier.
  static RESHARD_HOST_DEVICE void load(CopyWork const& work, Tile const& tile, std::byte* memory,
                                       std::uint32_t thread) {
    TilesCopy const& copy = tile.copy;
    std::uint32_t const side_bits = copy.line_bits - pack_bits;
    std::uint32_t const line = thread & ((1U << side_bits) - 1);  // in words, the same in all steps
    if (line * Pack >= tile.lines) return;
    Steps steps;
    steps.first = thread >> side_bits;
    steps.step = threads_per_block >> side_bits;
    steps.end = smaller(tile.columns / Pack, 1U << (copy.column_bits - pack_bits));
    std::byte const* const source = work.from + copy.from;
    std::uint32_t const at = tile.from + line * Pack * copy.line_from;
    std::byte* const row = memory + line * row_bytes(copy);
    std::uint32_t const next_line = row_bytes(copy) << side_bits;
    RESHARD_ROLLED_LOOP
    for (; steps.first < steps.end; steps.first += steps.step * batch)
      load_batch(source, at, copy.column_from, row, next_line, steps);
  }

  /// Copies from shared memory to the target, after the barrier.
  static RESHARD_HOST_DEVICE void store(CopyWork const& work, Tile const& tile,
                                        std::byte const* memory, std::uint32_t thread) {
    TilesCopy const& copy = tile.copy;
    std::uint32_t const side_bits = copy.column_bits - pack_bits;
    std::uint32_t const column =
        thread & ((1U << side_bits) - 1);  // in words, the same in all steps
    if (column * Pack >= tile.columns) return;
    std::uint32_t const step = threads_per_block >> side_bits;
    std::uint32_t const end = smaller(tile.lines, 1U << copy.line_bits);
    std::byte* const target = work.to + copy.to;
    std::uint32_t const at = tile.to + column * Pack * copy.column_to;
    std::byte const* const words = memory + column * sizeof(Held);
    std::uint32_t const row_of_lines = copy.line_bits - pack_bits;
    RESHARD_LOOP_BY_FOURS
    for (std::uint32_t line = thread >> side_bits; line < end; line += step) {
      std::uint32_t const row = (line % Pack << row_of_lines) + line / Pack;
      store_word(target + (at + line * copy.line_to),
                 load_word<Held>(words + row * row_bytes(copy)));
    }
  }

 private:
  using Held = Word<Width * Pack>;
  static constexpr std::uint32_t pack_bits = Pack == 4 ? 2 : Pack == 2 ? 1 : 0;
  static constexpr std::uint32_t batch =
      8 / Pack;  ///< steps with loads in flight at the same time: eight words of a thread

  struct Steps {
    std::uint32_t first = 0, step = 0, end = 0;
  };

  static RESHARD_HOST_DEVICE std::uint32_t smaller(std::uint32_t a, std::uint32_t b) {
    return a < b ? a : b;
  }

  /// Line l is in row l / Pack of part l % Pack: the lanes of the load phase, whose lines are
  /// Pack apart, write neighbouring rows, and with the gap at the end of each row different banks.
  static RESHARD_HOST_DEVICE std::uint32_t row_bytes(TilesCopy const& copy) {
    return ((1U << (copy.column_bits - pack_bits)) + tile_gap(sizeof(Held))) *
           static_cast<std::uint32_t>(sizeof(Held));
  }

  static RESHARD_HOST_DEVICE void load_batch(std::byte const* source, std::uint32_t at,
                                             std::uint32_t column_from, std::byte* row,
                                             std::uint32_t next_line, Steps const& steps) {
    Held held[batch][Pack];
    for (unsigned b = 0; b < batch; ++b) {
      std::uint32_t const column = steps.first + b * steps.step;
      if (column < steps.end)
        for (unsigned i = 0; i < Pack; ++i)
          held[b][i] = load_word<Held>(source + (at + (column * Pack + i) * column_from));
    }
    for (unsigned b = 0; b < batch; ++b) {
      std::uint32_t const column = steps.first + b * steps.step;
      if (column >= steps.end) continue;
      Held turned[Pack];
      transpose_words<Pack>(held[b], turned);
      for (unsigned j = 0; j < Pack; ++j)
        store_word(row + j * next_line + column * sizeof(Held), turned[j]);
    }
  }
};

}  // namespace reshard
