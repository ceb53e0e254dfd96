#pragma once

#include <cstdint>

namespace reshard {

/// A number in which each bit depends on all of `value` (the last step of SplitMix64: Steele, Lea,
/// Flood). Different for different values.
constexpr std::uint64_t mixed_bits(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

}  // namespace reshard
