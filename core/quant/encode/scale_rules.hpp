#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/quant/encode/encode.hpp"
#include "core/quant/encode/nearest_codes.hpp"
#include "core/quant/encode/weight_numbers.hpp"
#include "core/quant/number_formats.hpp"

// How the factor of a block follows from its largest magnitude (ScaleRule).
namespace reshard::quant::scale_rules {

/// Factor between the weights of a block and their codes.
struct Factor {
  float number = 1;
  std::uint32_t stored = 0;  ///< the scale as it is stored
};

inline std::uint32_t stored_scale(DType dtype, float scale) {
  std::uint32_t const code = std::bit_cast<std::uint32_t>(scale);
  if (dtype == DType::f32) return code;
  return dtype == DType::bf16 ? bf16_of(code) : f16_of(code);
}

/// Largest magnitude of a code.
inline float reach(Encoding const& encoding) {
  if (encoding.codes == CodeKind::e4m3) return 448;
  if (encoding.codes == CodeKind::e2m1) return 6;
  return static_cast<float>(1 << (encoding.integer_bits - 1)) - 0.5F;
}

template <class Number>
Factor quotient(Encoding const& encoding, float largest) {
  float scale = Number::rounded(largest / reach(encoding));
  if (scale == 0) scale = Number::epsilon;
  return {scale, stored_scale(encoding.scales, scale)};
}

template <class Number>
Factor wide_quotient(float largest) {
  float const scale = largest == 0 ? 1 : std::max(largest, Number::least) / 448.0F;
  return {scale, std::bit_cast<std::uint32_t>(scale)};
}

/// The next integer above the logarithm, rounded to F32 as PyTorch has it. Pre: value > 0.
inline int ceil_of_log2(float value) {
  std::uint32_t const code = std::bit_cast<std::uint32_t>(value);
  auto const field = static_cast<int>(code >> 23U);
  // From 2^-15 above a power of two on, no logarithm of F32 is rounded down to it.
  if (field != 0 && (code & 0x7fffffU) >= 0x100U) return field - 126;
  return static_cast<int>(std::ceil(static_cast<float>(std::log2(static_cast<double>(value)))));
}

/// 2^-exponent over weights. Pre: exponent is from -127 to 127.
inline Factor of_exponent(int exponent) {
  std::uint32_t const inverse =
      exponent == 127 ? 1U << 22U : static_cast<std::uint32_t>(127 - exponent) << 23U;
  return {std::bit_cast<float>(inverse), static_cast<std::uint32_t>(exponent + 127)};
}

inline Factor reciprocal(DType stored, float largest) {
  float factor = largest > 0 ? (1.0F / largest) * 448.0F : 1.0F;
  if (std::isinf(factor)) factor = 1;  // smaller than any scale: zeros
  float const scale = 1.0F / factor;
  if (stored == DType::f32) return {factor, std::bit_cast<std::uint32_t>(scale)};
  return of_exponent(ceil_of_log2(std::max(scale, 0x1p-126F)));
}

/// `largest`: the code of the largest magnitude.
template <class Number>
Factor power(CodeKind codes, typename Number::Stored largest) {
  std::uint32_t const up = std::uint32_t{1} << (Number::fraction - 2U);
  auto const field = static_cast<int>((std::uint32_t{largest} + up) >> Number::fraction);
  int const below = codes == CodeKind::e2m1 ? 2 : 8;
  int const exponent = field == 0 ? -127 : std::max(field - Number::bias - below, -127);
  // F16 has no smaller powers of two: compressed-tensors takes 1 then.
  if (Number::dtype == DType::f16 && exponent < -24) return {1, 127};
  return of_exponent(exponent);
}

inline Factor power_above(Encoding const& encoding, float largest) {
  float const scale = largest / reach(encoding);
  if (scale == 0) return of_exponent(-127);
  return of_exponent(std::max(ceil_of_log2(scale), -127));
}

/// The E4M3 scale of a block of E2M1 codes beside a second scale.
template <class Number>
Factor fine(ScaleRule rule, float second, float largest) {
  float const whole = 448.0F;
  if (rule == ScaleRule::divided) {
    std::uint32_t code = e4m3_of(std::min(second * Number::rounded(largest / 6.0F), whole));
    if (code == 0) code = 0x20;  // 0.125, the epsilon of E4M3
    return {static_cast<float>(decode(formats::e4m3, code)) / second, code};
  }
  float const scale = largest / (6.0F * second);
  std::uint32_t const code = e4m3_of(scale == 0 ? 1.0F : std::clamp(scale, 0x1p-9F, whole));
  return {static_cast<float>(decode(formats::e4m3, code)) * second, code};
}

/// `largest`: the code of the largest magnitude of a block.
template <class Number>
Factor factor_of(Encoding const& encoding, float second, typename Number::Stored largest) {
  float const value = weights::value_of<Number>(largest);
  switch (encoding.rule) {
    case ScaleRule::quotient: return quotient<Number>(encoding, value);
    case ScaleRule::wide_quotient: return wide_quotient<Number>(value);
    case ScaleRule::reciprocal: return reciprocal(encoding.scales, value);
    case ScaleRule::power: return power<Number>(encoding.codes, largest);
    case ScaleRule::power_above: return power_above(encoding, value);
    case ScaleRule::divided:
    case ScaleRule::times: break;
  }
  return fine<Number>(encoding.rule, second, value);
}

/// How codes follow from weights and the factors of their blocks.
enum class Step : std::uint8_t { divide_short, divide, multiply };

inline Step step_of(ScaleRule rule) {
  if (rule == ScaleRule::quotient) return Step::divide_short;
  bool const divides = rule == ScaleRule::wide_quotient || has_second(rule);
  return divides ? Step::divide : Step::multiply;
}

/// A weight over the scale of its block.
template <class Number, Step step>
[[gnu::always_inline]] inline float scaled(float weight, float factor) {
  if constexpr (step == Step::multiply) return weight * factor;
  if constexpr (step == Step::divide) return weight / factor;
  return Number::rounded(weight / factor);
}

/// Calls use<step>() for a step.
template <class Use>
[[gnu::always_inline]] inline void with_step(Step step, Use const& use) {
  if (step == Step::divide_short) return use.template operator()<Step::divide_short>();
  if (step == Step::divide) return use.template operator()<Step::divide>();
  use.template operator()<Step::multiply>();
}

}  // namespace reshard::quant::scale_rules
