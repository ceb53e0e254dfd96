#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/base/host_device.hpp"
#include "core/base/tables/byte_dim.hpp"
#include "core/device/kernels/copy_memory.hpp"
#include "core/device/kernels/digest_tables.hpp"
#include "core/device/program.hpp"
#include "core/device/strided_copy.hpp"

namespace reshard {

// The runs of a piece are cut into stretches, each the work of a team of 1 << lane_bits threads. A
// stretch is a row of aligned 8-byte words, of which the first and the last may count in part;
// thread t of the team takes every word whose number is t modulo the size of the team, so that
// neighbours read neighbouring words. Every thread's remainder is moved to the end of the stretch
// and every team's to its place in the tensor.

/// The input of the digest kernel: one descriptor for each piece. Offsets count from
/// LaunchPlaces::from and ::to.
struct DigestDescriptor {
  std::uint64_t first_block = 0;
  std::uint64_t from = 0;
  std::uint64_t after = 0;  ///< bytes of the tensor after the run of index 0
  std::uint64_t run_bytes = 0;
  std::uint64_t stretch_bytes = 0;
  std::uint64_t stretches_of_run = 0;
  std::uint64_t stretches = 0;  ///< of all runs
  std::uint64_t sum = 0;
  std::uint64_t dims_at = 0;  ///< of the program's bytes
  std::uint32_t dims = 0;
  std::uint32_t lane_bits = 0;
};

/// The shared memory of a block.
struct DigestShared {
  std::uint64_t step[16][16];
  std::uint64_t lanes[threads_per_block];
  std::uint64_t teams[threads_per_block];
};

/// One stretch: words [0, words) from `first_word` on, without the first `skip` bytes and the last
/// `pad` bytes.
struct DigestStretch {
  std::byte const* first_word = nullptr;
  std::uint64_t words = 0;  ///< 0: no stretch
  unsigned skip = 0;
  unsigned pad = 0;
  std::uint64_t after = 0;  ///< bytes of the tensor after it
};

RESHARD_HOST_DEVICE inline DigestStretch stretch_of(DigestDescriptor const& piece,
                                                    LaunchPlaces const& places,
                                                    std::uint64_t number) {
  if (number >= piece.stretches) return {};
  auto const* const dims = reinterpret_cast<ByteDim const*>(places.program + piece.dims_at);
  std::uint64_t const run = number / piece.stretches_of_run;
  RunPlace const place = place_of_run(run, dims, piece.dims);
  std::uint64_t const begin = (number - run * piece.stretches_of_run) * piece.stretch_bytes;
  std::uint64_t const left = piece.run_bytes - begin;
  std::uint64_t const bytes = left < piece.stretch_bytes ? left : piece.stretch_bytes;
  DigestStretch stretch;
  std::byte const* const at =
      places.from + (piece.from + static_cast<std::uint64_t>(place.from) + begin);
  stretch.skip = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(at) % 8);
  stretch.first_word = at - stretch.skip;
  stretch.words = (stretch.skip + bytes + 7) / 8;
  stretch.pad = static_cast<unsigned>(8 * stretch.words - stretch.skip - bytes);
  stretch.after = piece.after - static_cast<std::uint64_t>(place.to) + (left - bytes);
  return stretch;
}

/// Word `number`, with zeros for the skipped and padding bytes, which are not read: zeros in front
/// do not change a CRC, those behind are compensated.
RESHARD_HOST_DEVICE inline std::uint64_t word_of(DigestStretch const& stretch,
                                                 std::uint64_t number) {
  unsigned const skip = number == 0 ? stretch.skip : 0;
  unsigned const pad = number + 1 == stretch.words ? stretch.pad : 0;
  std::byte const* const at = stretch.first_word + 8 * number;
  if (skip + pad == 0) return load_word<std::uint64_t>(at);
  std::uint64_t word = 0;
  for (unsigned byte = skip; byte < 8 - pad; ++byte)
    word |= static_cast<std::uint64_t>(at[byte]) << 8 * byte;
  return word;
}

// The kernel's phases, each for one thread; all threads of a block end one before any begins the
// next.

RESHARD_HOST_DEVICE inline void digest_begin(DigestTables const& tables,
                                             DigestDescriptor const& piece, DigestShared& shared,
                                             unsigned thread) {
  shared.step[thread / 16][thread % 16] = tables.step[piece.lane_bits][thread / 16][thread % 16];
}
static_assert(threads_per_block == 256);

/// A register times the step.
RESHARD_HOST_DEVICE inline std::uint64_t stepped(DigestShared const& shared, std::uint64_t crc) {
  std::uint64_t product = 0;
  for (unsigned nibble = 0; nibble < 16; ++nibble)
    product ^= shared.step[nibble][crc >> 4 * nibble & 15U];
  return product;
}

RESHARD_HOST_DEVICE inline void digest_lanes(DigestTables const& tables,
                                             DigestDescriptor const& piece,
                                             LaunchPlaces const& places, DigestShared& shared,
                                             std::uint64_t block, unsigned thread) {
  std::uint64_t const team =
      ((block - piece.first_block) * threads_per_block + thread) >> piece.lane_bits;
  unsigned const lanes = 1U << piece.lane_bits;
  unsigned const lane = thread % lanes;
  DigestStretch const stretch = stretch_of(piece, places, team);
  std::uint64_t crc = 0;
  for (std::uint64_t word = lane; word < stretch.words; word += lanes)
    crc = stepped(shared, crc) ^ word_of(stretch, word);
  // The number of words of other lanes after this lane's last one.
  auto const behind = static_cast<unsigned>((stretch.words - 1 - lane) % lanes);
  shared.lanes[thread] = lane < stretch.words ? crc64_product(crc, tables.words[behind]) : 0;
}

RESHARD_HOST_DEVICE inline void digest_teams(DigestTables const& tables,
                                             DigestDescriptor const& piece,
                                             LaunchPlaces const& places, DigestShared& shared,
                                             std::uint64_t block, unsigned thread) {
  std::uint64_t crc = 0;
  if (thread < threads_per_block >> piece.lane_bits) {
    unsigned const lanes = 1U << piece.lane_bits;
    std::uint64_t const first_team =
        (block - piece.first_block) * threads_per_block >> piece.lane_bits;
    DigestStretch const stretch = stretch_of(piece, places, first_team + thread);
    for (unsigned lane = 0; lane < lanes; ++lane) crc ^= shared.lanes[thread * lanes + lane];
    // A CRC is its bytes times x^64: 8 bytes more, less the padding bytes of the last word.
    std::uint64_t shift = stretch.words == 0 ? 0 : stretch.after + 8 - stretch.pad;
    for (unsigned digit = 0; shift != 0; ++digit, shift >>= 8U)
      if ((shift & 255U) != 0) crc = crc64_product(tables.digits[digit][shift & 255U], crc);
  }
  shared.teams[thread] = crc;
}

inline constexpr unsigned digest_gatherers = 16;

RESHARD_HOST_DEVICE inline void digest_gather(DigestShared& shared, unsigned thread) {
  if (thread >= digest_gatherers) return;
  std::uint64_t crc = 0;
  for (unsigned team = thread; team < threads_per_block; team += digest_gatherers)
    crc ^= shared.teams[team];
  shared.lanes[thread] = crc;
}

/// The share of the block in the piece's sum. For one thread.
RESHARD_HOST_DEVICE inline std::uint64_t digest_share(DigestShared const& shared) {
  std::uint64_t crc = 0;
  for (unsigned gatherer = 0; gatherer < digest_gatherers; ++gatherer)
    crc ^= shared.lanes[gatherer];
  return crc;
}

}  // namespace reshard
