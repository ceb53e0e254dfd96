#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/host_device.hpp"
#include "core/device/kernels/copy_descriptors.hpp"
#include "core/device/kernels/copy_memory.hpp"

namespace reshard {

/// Bytes [shift, shift + 16) of the 32 bytes low, high. Pre: shift < 16. Only selections and
/// shifts, so that lanes do not diverge.
RESHARD_HOST_DEVICE inline Quad shifted_quad(Quad const& low, Quad const& high, unsigned shift) {
  bool const by_two = (shift & 8U) != 0;
  bool const by_one = (shift & 4U) != 0;
  unsigned const bits = (shift & 3U) * 8;
  std::uint32_t const all[8] = {low.part[0],  low.part[1],  low.part[2],  low.part[3],
                                high.part[0], high.part[1], high.part[2], high.part[3]};
  std::uint32_t halves[6];
  for (unsigned i = 0; i < 6; ++i) halves[i] = by_two ? all[i + 2] : all[i];
  std::uint32_t words[5];
  for (unsigned i = 0; i < 5; ++i) words[i] = by_one ? halves[i + 1] : halves[i];
  Quad result;
  for (unsigned i = 0; i < 4; ++i)
    result.part[i] =
        static_cast<std::uint32_t>((std::uint64_t{words[i + 1]} << 32U | words[i]) >> bits);
  return result;
}

/// The kernel shifted: a lane makes one aligned 16-byte word of the target out of the one or two
/// aligned words of the source that hold its bytes. Of the words that a run shares with its
/// surroundings only the run's bytes are written, in elements of `Edge` bytes.
template <unsigned Edge, unsigned Depth>
struct CopyShifted {
  static constexpr unsigned unit_items = items_per_unit(CopyVariant::shifted, Edge);

  static RESHARD_HOST_DEVICE void run(CopyWork const& work, std::uint32_t block,
                                      std::uint32_t thread) {
    UnitWork const unit = unit_work(work, block, thread, unit_items);
    RESHARD_ROLLED_LOOP
    for (std::uint32_t item = unit.first; item < unit.end; item += lanes_per_warp * Depth)
      move(work, unit.copy, item + thread % lanes_per_warp, unit.end);
  }

 private:
  /// A word of the target, of which bytes [begin, end) are the run's. The source of its byte 0 is
  /// `from`, which may lie before the run, even below zero.
  struct Piece {
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
  };

  /// Word number `word` of the run that begins `from` and `to` minus 16 · word bytes after the
  /// copy's places.
  static RESHARD_HOST_DEVICE Piece piece_of(RunsCopy const& copy, std::uint32_t word,
                                            std::uint32_t from, std::uint32_t to) {
    std::uint32_t const before = (static_cast<std::uint32_t>(copy.to) + to) % sizeof(Quad);
    std::uint32_t const stop = before + copy.run_bytes;  // of the run, counted from its first word
    std::uint32_t const at = word * sizeof(Quad);
    std::uint32_t const left = stop > at ? stop - at : 0;
    return {copy.from + from - before, copy.to + to - before, word == 0 ? before : 0,
            left < sizeof(Quad) ? left : 16U};
  }

  static RESHARD_HOST_DEVICE void move(CopyWork const& work, RunsCopy const& copy,
                                       std::uint32_t item, std::uint32_t end) {
    std::uint32_t number[Depth];
    std::uint32_t word[Depth];
    std::uint32_t from[Depth];
    std::uint32_t to[Depth];
    CopyLevel const words = work.levels[copy.first_level];
    for (unsigned d = 0; d < Depth; ++d) {
      std::uint32_t const all = item + d * lanes_per_warp;
      number[d] = divide(all, words.divisor);
      word[d] = all - number[d] * words.count;
      from[d] = copy.from_start + word[d] * words.from_stride;
      to[d] = word[d] * words.to_stride;
    }
    add_levels(work.levels + copy.first_level + 1, copy.levels - 1, number, from, to);
    Piece piece[Depth];
    Quad low[Depth] = {};
    Quad high[Depth] = {};
    for (unsigned d = 0; d < Depth; ++d) {
      piece[d] = piece_of(copy, word[d], from[d], to[d]);
      if (item + d * lanes_per_warp >= end) piece[d].end = 0;
      load(work.from, piece[d], low[d], high[d]);
    }
    for (unsigned d = 0; d < Depth; ++d)
      store(work.to + piece[d].to,
            shifted_quad(low[d], high[d], static_cast<unsigned>(piece[d].from % sizeof(Quad))),
            piece[d]);
  }

  static RESHARD_HOST_DEVICE void load(std::byte const* from, Piece const& piece, Quad& low,
                                       Quad& high) {
    if (piece.begin >= piece.end) return;
    auto const shift = static_cast<std::uint32_t>(piece.from % sizeof(Quad));
    std::uint64_t const first = piece.from - shift;
    if (shift + piece.begin < sizeof(Quad)) low = load_word<Quad>(from + first);
    if (shift + piece.end > sizeof(Quad)) high = load_word<Quad>(from + first + sizeof(Quad));
  }

  static RESHARD_HOST_DEVICE void store(std::byte* to, Quad const& quad, Piece const& piece) {
    if (piece.begin == 0 && piece.end == sizeof(Quad)) return store_word(to, quad);
    constexpr unsigned per_part = sizeof(std::uint32_t) / Edge;
    for (unsigned i = 0; i < sizeof(Quad) / Edge; ++i)
      if (piece.begin <= i * Edge && i * Edge < piece.end)
        store_word(to + i * Edge,
                   static_cast<Word<Edge>>(quad.part[i / per_part] >> (i % per_part * Edge * 8)));
  }
};

}  // namespace reshard
