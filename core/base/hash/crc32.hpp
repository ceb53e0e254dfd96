#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace reshard {

/// zip's CRC-32 of `bytes`, continuing from `crc` (0 for a start). ISA-L when built with it, else
/// zlib.
std::uint32_t crc32(std::span<std::byte const> bytes, std::uint32_t crc = 0);

/// The share of a piece in the CRC-32 of the byte sequence that contains it. The shares of all
/// pieces, in any order, give `crc32 = crc32_of_zeros(total_bytes) ^ share_1 ^ share_2 ^ …`.
/// `after_bytes`: the number of bytes after the piece.
std::uint32_t crc32_share(std::span<std::byte const> piece, std::uint64_t after_bytes);

/// crc32_share() of a piece whose CRC-32 is known.
std::uint32_t crc32_share_of(std::uint32_t crc_of_piece, std::uint64_t piece_bytes,
                             std::uint64_t after_bytes);

/// The xor of the shares of several pieces of one byte sequence: cheaper than crc32_share() of each
/// if they come in order.
class Crc32Pieces {
 public:
  explicit Crc32Pieces(std::uint64_t whole_bytes) : whole_bytes_(whole_bytes) {}

  /// Adds bytes [offset_bytes, +piece.size()) of the sequence.
  void add(std::uint64_t offset_bytes, std::span<std::byte const> piece);
  /// The share of all pieces that were added.
  std::uint32_t share() const;

 private:
  std::uint64_t whole_bytes_;
  std::uint64_t at_ = 0;  ///< offset after the last byte in the register
  std::uint32_t register_ = 0;
  std::uint32_t share_ = 0;  ///< of the pieces before the first one in the register
  std::uint64_t gap_bytes_ =
      0;  ///< the last gap between two pieces; the register is multiplied by gap_factor_
  std::uint32_t gap_factor_ = 0;
};

/// The CRC-32 of `bytes` zero bytes, to which shares are added.
std::uint32_t crc32_of_zeros(std::uint64_t bytes);

}  // namespace reshard
