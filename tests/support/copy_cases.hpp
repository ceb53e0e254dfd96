#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/device/copy_program.hpp"

// Copies for tests of the copy kernels on any device, with the result that byte-by-byte loops give.
// No test framework is needed.

namespace reshard::test {

/// A CopyRequest that owns its dimensions.
struct OwnedCopy {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t run_bytes = 0;
  std::vector<ByteDim> dims;

  CopyRequest request() const { return {from, to, run_bytes, dims}; }
};

/// Copies of one program with the memory they need on both sides. Sizes are multiples of 16; no
/// byte of the target is written twice.
struct CopyCase {
  std::vector<OwnedCopy> copies;
  std::size_t from_bytes = 0;
  std::size_t to_bytes = 0;

  std::vector<CopyRequest> requests() const;
};

/// Random copies: 1 to 5 of them, of every kind that the kernels tell apart (long runs, single
/// elements, transposes, every n-th element, …), elements of 1 to 16 bytes, up to 6 dimensions,
/// forwards and backwards, repeated sources, places of any alignment, with and without gaps between
/// them. At most about `most_bytes` are moved. The same seed gives the same case.
CopyCase random_copy_case(std::uint64_t seed, std::uint64_t most_bytes = 40000);

/// One run of `run_bytes` bytes.
CopyCase one_run(std::uint64_t from, std::uint64_t to, std::uint64_t run_bytes);

/// For every pair of places (mod 16) the runs of a length, three for each pair.
CopyCase all_alignments(std::uint64_t run_bytes);

/// Random bytes; the same seed gives the same bytes.
std::vector<std::byte> random_memory(std::size_t bytes, std::uint64_t seed);

/// The case carried out with one loop for each dimension and one for the bytes.
void copy_byte_by_byte(CopyCase const& copies, std::byte const* from, std::byte* to);

/// The offset of the first byte that differs; `bytes` when none does.
std::size_t first_difference(std::byte const* a, std::byte const* b, std::size_t bytes);

}  // namespace reshard::test
