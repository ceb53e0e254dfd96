#pragma once

#include <cstdint>
#include <span>

#include "core/base/tables/byte_dim.hpp"
#include "core/device/program.hpp"

namespace reshard {

/// A strided copy as copy_strided() takes it; `from` and `to` count from LaunchPlaces::from and
/// ::to.
struct CopyRequest {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t run_bytes = 0;
  std::span<ByteDim const> dims;
};

/// Adds the launches of these copies to a program: dimensions joined, the widest element that all
/// addresses allow, work cut into equal blocks. Copies of one call run at the same time. Strides
/// may be zero (in the source) or negative. Pre: no byte that one of the copies reads is written by
/// one of them; no byte is written twice. LaunchPlaces::from and ::to are multiples of 16. Kernels
/// read complete aligned 16-byte words that contain a wanted byte, so the source must be readable
/// up to a multiple of 16 on both sides; they write wanted bytes only.
void add_copies(Program& program, std::span<CopyRequest const> copies);

/// Bytes that the copies move.
std::uint64_t bytes_of(std::span<CopyRequest const> copies);

}  // namespace reshard
