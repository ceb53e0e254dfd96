#pragma once

#include <bit>
#include <cstdint>

#include "core/quant/rounded.hpp"

// Codes of F32, BF16 and F16 in steps without a branch: loops of them become vectors.
namespace reshard::quant {

/// The code of F32 with the value of another one, the payload of a NaN included.
constexpr std::uint32_t f32_of_bf16(std::uint16_t code) {
  return static_cast<std::uint32_t>(code) << 16U;
}

constexpr std::uint32_t f32_of_f16(std::uint16_t code) {
  std::uint32_t const sign = (code & 0x8000U) << 16U;
  std::uint32_t const size = (code & 0x7fffU) << 13U;
  constexpr std::uint32_t rebias = 112U << 23U;
  // Subnormal ones have steps of 2^-24, as the numbers from 2^-14 on have.
  float const tiny = std::bit_cast<float>(size + rebias + (1U << 23U)) - 0x1p-14F;
  std::uint32_t const usual = size + rebias + if_less(size, 0x7c00U << 13U, 0, rebias);
  return sign | if_less(size, 0x400U << 13U, std::bit_cast<std::uint32_t>(tiny), usual);
}

/// The code, in the lower half, that has the value of one of F32; where there is none, any code.
/// For F16 infinities and NaNs have none.
constexpr std::uint32_t kept_bf16(std::uint32_t f32) { return f32 >> 16U; }

constexpr std::uint32_t kept_f16(std::uint32_t f32) {
  std::uint32_t const size = f32 & 0x7fffffffU;
  constexpr std::uint32_t largest = 0x477fe000U;
  // Subnormal ones are so in F32, too, when they are 2^112 times as small.
  float const small = std::bit_cast<float>(if_less(size, largest, size, largest)) * 0x1p-112F;
  return (f32 >> 16U & 0x8000U) | std::bit_cast<std::uint32_t>(small) >> 13U;
}

/// Zero where the code that was kept has the value of the one of F32.
constexpr std::uint32_t lost_by_bf16(std::uint32_t kept, std::uint32_t f32) {
  return kept << 16U ^ f32;
}

constexpr std::uint32_t lost_by_f16(std::uint32_t kept, std::uint32_t f32) {
  float const value = std::bit_cast<float>((kept & 0x7fffU) << 13U) * 0x1p112F;
  return std::bit_cast<std::uint32_t>(value) ^ (f32 & 0x7fffffffU);
}

}  // namespace reshard::quant
