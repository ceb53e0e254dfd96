#pragma once

#include <bit>
#include <cstdint>

namespace reshard::quant {

/// `yes` where a is less than b. Both are computed, so that loops of it become vectors, whose
/// comparisons have signs. Pre: a and b are less than 2^31.
constexpr std::uint32_t if_less(std::uint32_t a, std::uint32_t b, std::uint32_t yes,
                                std::uint32_t no) {
  bool const less = static_cast<std::int32_t>(a) < static_cast<std::int32_t>(b);
  return no ^ ((yes ^ no) & (0U - static_cast<std::uint32_t>(less)));
}

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
  constexpr std::uint32_t infinite = 143U << 23U;  // 2^16
  constexpr std::uint32_t lowest = 113U << 23U;    // 2^-14, the exponent of subnormals too
  std::uint32_t const bounded = if_less(size, infinite, size, infinite);
  std::uint32_t const power = bounded & 0x7f800000U;
  std::uint32_t const exponent = if_less(power, lowest, lowest, power);
  // The sum with a number 2^13 times as large has steps of 2^-10 of this power of two.
  std::uint32_t const large = exponent + (13U << 23U);
  float const sum = std::bit_cast<float>(bounded) + std::bit_cast<float>(large);
  std::uint32_t const steps = std::bit_cast<std::uint32_t>(sum) - large;
  std::uint32_t const code = steps + ((exponent - lowest) >> 13U);
  return static_cast<std::uint16_t>(sign | if_less(0x7f800000U, size, 0x7e00U, code));
}

}  // namespace reshard::quant
