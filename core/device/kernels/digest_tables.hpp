#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/hash/crc64.hpp"

namespace reshard {

/// Lanes that share a stretch are 1 << k, k up to this.
inline constexpr unsigned most_lane_bits = 5;

/// Constants of the digest kernel: products modulo the polynomial of CRC-64.
struct DigestTables {
  /// [k][nibble][value]: the register of which only this nibble is not zero, times x^(64 << k), the
  /// step from one word of a lane to its next. A nibble's 16 values fill all banks of shared memory
  /// once: the lookups of a warp never conflict.
  std::uint64_t step[most_lane_bits + 1][16][16];
  /// [words]: x^(64 words).
  std::uint64_t words[1U << most_lane_bits];
  /// [digit][value]: x^(8 value 256^digit).
  std::uint64_t digits[8][256];
};

constexpr DigestTables make_digest_tables() {
  DigestTables tables{};
  std::uint64_t step = crc64_one;
  for (int bit = 0; bit < 64; ++bit) step = crc64_times_x(step);
  tables.words[0] = crc64_one;
  for (unsigned word = 1; word <= 1U << most_lane_bits; ++word) {
    std::uint64_t const next = crc64_product(tables.words[word - 1], step);
    if (word < 1U << most_lane_bits) tables.words[word] = next;
    unsigned lane_bits = 0;
    while (1U << lane_bits < word) ++lane_bits;
    if (1U << lane_bits != word) continue;
    std::uint64_t shifted = next;
    for (unsigned bit = 64; bit-- > 0; shifted = crc64_times_x(shifted))
      tables.step[lane_bits][bit / 4][1U << bit % 4] = shifted;
    for (auto& nibble : tables.step[lane_bits])
      for (unsigned value = 1; value < 16; ++value)
        nibble[value] = nibble[value & (value - 1)] ^ nibble[value & (~value + 1)];
  }
  std::uint64_t base = crc64_one >> 8U;  // x^8
  for (auto& digit : tables.digits) {
    digit[0] = crc64_one;
    for (unsigned value = 1; value < 256; ++value)
      digit[value] = crc64_product(digit[value - 1], base);
    base = crc64_product(digit[255], base);
  }
  return tables;
}

}  // namespace reshard
