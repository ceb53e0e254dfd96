#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/host_device.hpp"
#include "core/device/device.hpp"

namespace reshard::test {

/// Word `index` of an endless random sequence: any part of it can be computed anywhere, so data
/// that a GPU made can be checked on the host.
RESHARD_HOST_DEVICE inline std::uint64_t random_word(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t word = (index + 1) * 0x9e3779b97f4a7c15U + seed * 0xd1342543de82ef95U;
  word = (word ^ (word >> 30U)) * 0xbf58476d1ce4e5b9U;
  word = (word ^ (word >> 27U)) * 0x94d049bb133111ebU;
  return word ^ (word >> 31U);
}

/// Byte `at` of the sequence as it lies in memory.
inline std::byte random_byte(std::uint64_t seed, std::uint64_t at) {
  return static_cast<std::byte>(random_word(seed, at / 8) >> 8 * (at % 8));
}

inline constexpr std::uint64_t all_bits = ~std::uint64_t{0};

/// Puts into the stream: words [0, bytes / 8) of the sequence, each of whose bits outside `mask`
/// are zero, to `at` of the device. Pre: `at` and `bytes` are multiples of 8.
void fill_random(DeviceStream& stream, std::byte* at, std::uint64_t bytes, std::uint64_t seed,
                 std::uint64_t mask = all_bits);

}  // namespace reshard::test
