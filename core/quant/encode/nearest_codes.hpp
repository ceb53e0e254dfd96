#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/quant/rounded.hpp"

// Codes nearest to numbers, in steps without a branch: loops of them become vectors.
namespace reshard::quant {

/// The code of E4M3 nearest to a number, that of 448 beyond it.
inline std::uint32_t e4m3_of(float value) {
  std::uint32_t const code = std::bit_cast<std::uint32_t>(value);
  std::uint32_t const size = code & 0x7fffffffU;
  constexpr std::uint32_t largest = 0x43e00000U;  // 448
  std::uint32_t const bounded = if_less(size, largest, size, largest);
  std::uint32_t const usual =
      ((bounded + 0x7ffffU + (bounded >> 20U & 1U)) >> 20U) - ((127U - 7U) << 3U);
  // Below 2^-6 the steps are 2^-9, as those of F32 are from 2^14 on.
  float const sum = std::bit_cast<float>(bounded) + 0x1p14F;
  std::uint32_t const small =
      std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(0x1p14F);
  return if_less(bounded, 0x3c800000U, small, usual) | (code >> 24U & 0x80U);
}

/// The code of E2M1 nearest to a number, of two the even one.
inline std::uint32_t e2m1_of(float value, bool negative) {
  float const size = std::abs(value);
  int const below = (size > 0.25F) + (size > 1.25F) + (size > 2.5F) + (size > 5.0F);
  int const upto = (size >= 0.75F) + (size >= 1.75F) + (size >= 3.5F);
  return static_cast<std::uint32_t>(below + upto) + (negative ? 8U : 0U);
}

/// The integer from -half to half - 1 nearest to a number, plus half. Pre: it is far below 2^22: a
/// weight is at most half a scale's range, and twice that of one that was rounded to so few bits.
inline std::uint32_t integer_of(float value, int half) {
  constexpr float whole = 0x1.8p23F;  // from here on floats have no fraction
  auto const steps = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(value + whole) -
                                               std::bit_cast<std::uint32_t>(whole));
  return static_cast<std::uint32_t>(std::min(std::max(steps, -half), half - 1) + half);
}

}  // namespace reshard::quant
