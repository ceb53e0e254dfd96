#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

namespace reshard {

/// The unsigned number in the first sizeof(T) bytes, lowest byte first. Pre: bytes holds that many.
template <class T>
T load_little_endian(std::span<std::byte const> bytes) {
  static_assert(std::is_unsigned_v<T>);
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return static_cast<T>(value);
}

template <class T>
void append_little_endian(std::string& out, T value) {
  static_assert(std::is_unsigned_v<T>);
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out.push_back(static_cast<char>((std::uint64_t{value} >> (8 * i)) & 0xff));
}

}  // namespace reshard
