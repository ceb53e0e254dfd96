#pragma once

#include <bit>
#include <cstdint>

namespace reshard::quant {

/// The BF16 nearest to an F32, both as bits; of two equally near the even one. A NaN is 0x7fc0, as
/// in PyTorch on a CPU.
constexpr std::uint16_t bf16_of(std::uint32_t f32) {
  if ((f32 & 0x7fffffffU) > 0x7f800000U) return 0x7fc0;
  return static_cast<std::uint16_t>((f32 + 0x7fffU + ((f32 >> 16U) & 1U)) >> 16U);
}

/// The same for F16; what is too large is infinite.
constexpr std::uint16_t f16_of(std::uint32_t f32) {
  std::uint32_t const sign = f32 >> 16U & 0x8000U;
  std::uint32_t const size = f32 & 0x7fffffffU;
  if (size > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);
  if (size >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // 2^16
  if (size < 0x38800000U) {  // 2^-14: the sum with 1/2 has steps of 2^-24, as subnormals have
    float const sum = std::bit_cast<float>(size) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3f000000U));
  }
  std::uint32_t const rounded = size - 0x38000000U + 0xfffU + (size >> 13U & 1U);
  return static_cast<std::uint16_t>(sign | rounded >> 13U);
}

}  // namespace reshard::quant
