#pragma once

#include <bit>
#include <cstdint>

#include "core/quant/number_formats.hpp"

namespace reshard::quant {
namespace detail {

/// The double next to `sum` that has the lowest bit set, of the two that enclose the true sum `sum`
/// + `error`: what is rounded to fewer digits from there comes out as if it were rounded from the
/// true sum. Pre: error is not 0.
constexpr double odd_sum(double sum, double error) {
  auto const bits = std::bit_cast<std::uint64_t>(sum);
  bool const finite = ((bits >> 52U) & 0x7ffU) != 0x7ff;
  if (!finite || (bits & 1U) != 0) return sum;
  return std::bit_cast<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

}  // namespace detail

/// The code of the number that `code` means plus `constant`, rounded once, to nearest even; `exact`
/// when nothing was rounded. With constant 0 the number keeps all that encode() keeps; with another
/// one infinities and NaNs stay as they are. Host and kernels run this very function.
///
/// Pre: constant is finite; target.specials is ieee.
[[gnu::always_inline]] constexpr Encoded convert_element(FloatFormat source, FloatFormat target,
                                                         std::uint64_t code, double constant) {
  double const value = decode(source, code);
  bool const finite = ((std::bit_cast<std::uint64_t>(value) >> 52U) & 0x7ffU) != 0x7ff;
  if (constant == 0 || !finite) return encode(target, value);
  // The rounding error of an addition is itself a double, found by Knuth's two-sum.
  double const sum = value + constant;
  double const part = sum - value;
  double const error = (value - (sum - part)) + (constant - part);
  if (error == 0) [[likely]]
    return encode(target, sum);
  return {encode(target, target == formats::f64 ? sum : detail::odd_sum(sum, error)).code, false};
}

}  // namespace reshard::quant
