#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace reshard {

/// zip's CRC-32 of `bytes`, continuing from `crc` (0 for a start). ISA-L when built with it, else zlib.
std::uint32_t crc32(std::span<std::byte const> bytes, std::uint32_t crc = 0);

/// The share of a piece in the CRC-32 of the whole it lies in: the CRCs of all pieces of a whole, in any order, xor to
/// `crc32_of_whole = crc32_of_zeros(whole_bytes) ^ share_1 ^ share_2 ^ …`. `after_bytes` is how many bytes follow the piece in the whole.
std::uint32_t crc32_share(std::span<std::byte const> piece, std::uint64_t after_bytes);

/// The CRC-32 of `bytes` zero bytes: what the shares are added to.
std::uint32_t crc32_of_zeros(std::uint64_t bytes);

}  // namespace reshard
