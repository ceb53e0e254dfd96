#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace reshard {

inline std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; i += 8) {
    std::uint64_t const word = random();
    std::memcpy(&bytes[i], &word, std::min<std::size_t>(8, size - i));
  }
  return bytes;
}

}  // namespace reshard
