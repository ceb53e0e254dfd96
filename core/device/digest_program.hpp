#pragma once

#include <cstdint>
#include <span>

#include "core/base/tables/byte_dim.hpp"
#include "core/device/program.hpp"

namespace reshard {

/// A piece of a logical tensor of `tensor_bytes` bytes: runs of `run_bytes` bytes that lie at
/// `from` + from_stride · index and are at byte `at` + to_stride · index of the tensor's
/// row-major bytes. Its share of the tensor's CRC-64 (core/base/hash/crc64.hpp) is added by xor to
/// the 8 bytes at `sum` (a multiple of 8, counted from LaunchPlaces::to).
struct DigestRequest {
  std::uint64_t from = 0;
  std::uint64_t at = 0;
  std::uint64_t run_bytes = 0;
  std::span<ByteDim const> dims;
  std::uint64_t tensor_bytes = 0;
  std::uint64_t sum = 0;
};

/// Adds the launch of these digests to a program. Pieces may share a sum. No byte outside of the
/// runs is read. Pre: every run lies within the tensor; `from` is right for every index, so that no
/// strides lead below LaunchPlaces::from.
void add_digests(Program& program, std::span<DigestRequest const> pieces);

}  // namespace reshard
