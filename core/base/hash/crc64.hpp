#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace reshard {

// CRC-64 with the polynomial of ECMA-182, bits reflected, without the inversions before and after:
// the plain remainder, which is linear. The CRC of a byte sequence is the xor of the CRCs of its
// parts, each moved to its offset by crc64_shifted().
//
//   crc64(a b) = crc64_shifted(crc64(a), bytes of b) ^ crc64(b);   leading zeros do not matter
//
// A CRC is a polynomial over GF(2) of degree below 64, modulo P: bit 63 is x^0, bit 0 is x^63. The
// functions in this header are for kernels, too.

/// P without x^64.
inline constexpr std::uint64_t crc64_polynomial = 0xc96c5795d7870f42U;
/// x^0.
inline constexpr std::uint64_t crc64_one = std::uint64_t{1} << 63U;

/// a * x mod P.
constexpr std::uint64_t crc64_times_x(std::uint64_t a) {
  return (a >> 1U) ^ (crc64_polynomial & (0 - (a & 1U)));
}

/// a * b mod P.
constexpr std::uint64_t crc64_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  for (; a != 0; a <<= 1U) {
    product ^= b & (0 - (a >> 63U));
    b = crc64_times_x(b);
  }
  return product;
}

/// x^(8 * bytes) mod P: the factor for the CRC of a part that is followed by `bytes` bytes.
std::uint64_t crc64_power(std::uint64_t bytes);

/// Multiplies by one factor, fast: for factors that are used some hundred times.
class Crc64Factor {
 public:
  constexpr explicit Crc64Factor(std::uint64_t factor) {
    std::uint64_t shifted = factor;  // factor * x^(63 - bit)
    for (unsigned bit = 64; bit-- > 0; shifted = crc64_times_x(shifted)) {
      std::array<std::uint64_t, 256>& table = tables_[bit / 8];
      std::size_t const first = std::size_t{1} << bit % 8;
      table[first] = shifted;
    }
    for (std::array<std::uint64_t, 256>& table : tables_)
      for (std::size_t value = 1; value < 256; ++value)
        table[value] = table[value & (value - 1)] ^ table[value & (~value + 1)];
  }

  constexpr std::uint64_t operator()(std::uint64_t crc) const {
    std::uint64_t product = 0;
    for (std::size_t byte = 0; byte < 8; ++byte)
      product ^= tables_[byte][(crc >> 8 * byte) & 0xffU];
    return product;
  }

  /// The product of a register of which only this byte is not zero.
  constexpr std::uint64_t of_byte(std::size_t byte, std::uint8_t value) const {
    return tables_[byte][value];
  }

 private:
  std::array<std::array<std::uint64_t, 256>, 8> tables_{};  ///< [byte of the register][its value]
};

/// The CRC of `bytes`, continuing from `crc` (0 for a start). ISA-L when built with it, else
/// tables.
std::uint64_t crc64(std::span<std::byte const> bytes, std::uint64_t crc = 0);

/// crc64() with tables, eight bytes at a time, without ISA-L.
std::uint64_t crc64_by_tables(std::span<std::byte const> bytes, std::uint64_t crc = 0);

/// The CRC after a further `bytes` zero bytes.
std::uint64_t crc64_shifted(std::uint64_t crc, std::uint64_t bytes);

}  // namespace reshard
