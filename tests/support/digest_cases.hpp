#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/tables/byte_dim.hpp"
#include "tests/support/device_case.hpp"

// Pieces of tensors for tests of digests on any device, with the CRCs that a loop over bits gives
// of the gathered tensors.

namespace reshard::test {

/// A DigestRequest that owns its dimensions.
struct OwnedPiece {
  std::uint64_t from = 0;
  std::uint64_t at = 0;
  std::uint64_t run_bytes = 0;
  std::vector<ByteDim> dims;
  std::uint64_t tensor_bytes = 0;
  std::uint64_t sum = 0;
};

struct DigestCase {
  DeviceCase device;
  std::vector<OwnedPiece> pieces;
  std::vector<std::uint64_t> shares;  ///< of each piece
};

/// The definition of the CRC, bit by bit.
std::uint64_t slow_digest(std::span<std::byte const> bytes);

/// A tensor of random shape and element size that is cut into boxes, each of which lies somewhere
/// with its axes in any order, some of them backwards; all pieces add to one sum.
DigestCase random_digest_case(std::uint64_t seed);

/// One run of each length, at every address modulo 16, in the middle of a tensor.
DigestCase run_case(std::vector<std::uint64_t> const& lengths, std::uint64_t seed);

/// Rows of a tensor of terabytes: only the places are large.
DigestCase far_case(std::uint64_t seed);

}  // namespace reshard::test
