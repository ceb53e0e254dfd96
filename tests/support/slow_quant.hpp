#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/quant/scheme.hpp"

namespace reshard {

/// The number formats and quantised forms once more, written for reading and not for speed, from
/// their definitions: powers of two by ldexp, rounding by looking for the nearest of all values.

/// (-1)^sign * 2^(exponent - bias) * 1.fraction, and 0.fraction below the normal numbers; no
/// infinities or NaNs.
double slow_number(int exponent_bits, int fraction_bits, std::uint32_t code);

/// The IEEE formats: slow_number, and infinities and NaNs above.
double slow_ieee(int exponent_bits, int fraction_bits, std::uint32_t code);
double slow_e4m3(std::uint32_t code);
double slow_e8m0(std::uint32_t code);

/// The code of the nearest value of an IEEE format of 16 bits; of two equally near ones the even
/// code; infinity from half a step beyond the last on.
std::uint16_t slow_nearest(int exponent_bits, int fraction_bits, long double value);

/// A quantised form that the program knows, and what stands beside its codes.
struct QuantForm {
  char const* name;
  quant::Scheme scheme;
  quant::Companions companions;
};

/// All that a device decodes, and packed integers of odd widths.
std::vector<QuantForm> quant_forms();

/// Those with factors of their own for each column, or codes that do not lie along the rows.
std::vector<QuantForm> column_forms();

/// A quantised weight with everything that belongs to it.
struct SlowWeight {
  quant::Scheme scheme;
  quant::MatrixShape shape;
  quant::Companions companions;
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  std::vector<std::byte> seconds;
  std::vector<std::byte> zero_points;
  std::vector<std::byte> groups = {};
  std::vector<std::byte> factors = {};
};

/// Random codes, all of them possible; scales of many sizes, now and then a special one.
SlowWeight random_weight(quant::Scheme const& scheme, quant::MatrixShape const& shape,
                         quant::Companions const& companions, std::mt19937_64& random);

/// The BF16 code of one element.
std::uint16_t slow_element(SlowWeight const& weight, Index row, Index column);

/// Of all elements, in row-major order.
std::vector<std::uint16_t> slow_elements(SlowWeight const& weight);

inline bool is_nan_bf16(std::uint16_t code) { return (code & 0x7fffU) > 0x7f80U; }

/// The same number, or both no number.
inline bool same_bf16(std::uint16_t a, std::uint16_t b) {
  return a == b || (is_nan_bf16(a) && is_nan_bf16(b));
}

}  // namespace reshard
