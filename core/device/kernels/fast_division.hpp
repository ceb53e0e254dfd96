#pragma once

#include <cstdint>

#include "core/base/host_device.hpp"

namespace reshard {

/// Division by a number that is known before the kernel starts: one multiplication and shifts
/// instead of a division of some twenty steps.
///
/// For a divisor d and s = ceil(log2 d), the multiplier is m = ceil(2^(31+s) / d), which fits in 32
/// bits. n · m / 2^(31+s) exceeds n / d by less than n / 2^(31+s), for n < 2^31 by less than 2^-s
/// <= 1 / d: not enough to reach the next integer.
struct FastDivisor {
  std::uint32_t multiplier = 1U << 31U;
  std::uint32_t shift = 0;
};

/// Numbers that fast division divides are below this, and divisors at most this.
inline constexpr std::uint32_t fast_division_limit = 1U << 31U;

/// Pre: 1 <= divisor <= fast_division_limit.
constexpr FastDivisor fast_divisor(std::uint32_t divisor) {
  std::uint32_t shift = 0;
  while ((std::uint64_t{1} << shift) < divisor) ++shift;
  std::uint64_t const scale = std::uint64_t{1} << (31U + shift);
  return {static_cast<std::uint32_t>((scale + divisor - 1) / divisor), shift};
}

/// Pre: number < fast_division_limit.
RESHARD_HOST_DEVICE inline std::uint32_t divide(std::uint32_t number, FastDivisor divisor) {
  auto const high =
      static_cast<std::uint32_t>(std::uint64_t{number << 1U} * divisor.multiplier >> 32U);
  return high >> divisor.shift;
}

}  // namespace reshard
