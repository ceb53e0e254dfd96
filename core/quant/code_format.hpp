#pragma once

#include <cstdint>

namespace reshard::quant {

/// How one code of a quantised weight is stored.
enum class CodeFormat : std::uint8_t {
  e4m3,     ///< one per byte
  e5m2,     ///< one per byte
  i8,       ///< one per byte, two's complement
  e2m1,     ///< two per byte, the even column in the low half
  integer,  ///< `integer_bits` each, one after the other from the lowest bit of a row's first
            ///< 32-bit word; stands for code - 2^(integer_bits - 1)
};

/// Use of the second scale, a number for a whole matrix.
enum class SecondScale : std::uint8_t {
  none,
  times,       ///< value = code * scale * second
  divided_by,  ///< value = code * scale / second
};

}  // namespace reshard::quant
