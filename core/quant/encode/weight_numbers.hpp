#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"
#include "core/quant/short_floats.hpp"

// The dtypes of weights that are quantised: their codes as F32, and F32 rounded to them.
namespace reshard::quant::weights {

template <class Code, int fraction_bits>
struct Number {
  using Stored = Code;
  static constexpr int fraction = fraction_bits;
  static constexpr float largest_zero = 0;  ///< F32 up to here are rounded to zero
};

struct Bf16 : Number<std::uint16_t, 7> {
  static constexpr DType dtype = DType::bf16;
  static constexpr float epsilon = 0x1p-7F;
  static constexpr float least = 0x1p-126F;  ///< with all bits of the fraction
  static constexpr int bias = 127;
  static std::uint32_t wide(std::uint16_t code) { return f32_of_bf16(code); }
  static float rounded(float value) {
    std::uint32_t const code = std::bit_cast<std::uint32_t>(value);
    return std::bit_cast<float>((code + 0x7fffU + (code >> 16U & 1U)) & 0xffff0000U);
  }
};

struct F16 : Number<std::uint16_t, 10> {
  static constexpr DType dtype = DType::f16;
  static constexpr float epsilon = 0x1p-10F;
  static constexpr float least = 0x1p-14F;  ///< with all bits of the fraction
  static constexpr float largest_zero = 0x1p-25F;
  static constexpr int bias = 15;
  static std::uint32_t wide(std::uint16_t code) { return f32_of_f16(code); }
  static float rounded(float value) {
    return std::bit_cast<float>(f32_of_f16(f16_of(std::bit_cast<std::uint32_t>(value))));
  }
};

struct F32 : Number<std::uint32_t, 23> {
  static constexpr DType dtype = DType::f32;
  static constexpr float epsilon = 0x1p-23F;
  static constexpr float least = 0x1p-126F;  ///< with all bits of the fraction
  static constexpr int bias = 127;
  static std::uint32_t wide(std::uint32_t code) { return code; }
  static float rounded(float value) { return value; }
};

template <class Number>
typename Number::Stored load(std::byte const* from, Index element) {
  typename Number::Stored code;
  std::memcpy(&code, from + static_cast<std::size_t>(element) * sizeof code, sizeof code);
  return code;
}

template <class Number>
float value_of(typename Number::Stored code) {
  return std::bit_cast<float>(Number::wide(code));
}

/// Calls use(Number()) for a dtype of weights.
template <class Use>
auto with_number(DType dtype, Use const& use) {
  if (dtype == DType::bf16) return use(Bf16());
  if (dtype == DType::f16) return use(F16());
  return use(F32());
}

}  // namespace reshard::quant::weights
