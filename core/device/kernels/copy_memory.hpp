#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/base/host_device.hpp"

namespace reshard {

/// 16 bytes that one thread moves at once.
struct alignas(16) Quad {
  std::uint32_t part[4];
};

/// The type that moves `Width` bytes at once.
template <unsigned Width>
struct WordOf;
template <>
struct WordOf<1> {
  using Type = std::uint8_t;
};
template <>
struct WordOf<2> {
  using Type = std::uint16_t;
};
template <>
struct WordOf<4> {
  using Type = std::uint32_t;
};
template <>
struct WordOf<8> {
  using Type = std::uint64_t;
};
template <>
struct WordOf<16> {
  using Type = Quad;
};
template <unsigned Width>
using Word = typename WordOf<Width>::Type;

/// A GPU stops at unaligned accesses with an error; this check does so on the host.
inline void expect_aligned(std::byte const* at, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(at) % bytes != 0) std::abort();
}

/// Pre: `at` is a multiple of the word's size.
template <class Type>
RESHARD_HOST_DEVICE inline Type load_word(std::byte const* at) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<Type const*>(at);
#else
  expect_aligned(at, sizeof(Type));
  Type word;
  std::memcpy(&word, at, sizeof(Type));
  return word;
#endif
}

template <class Type>
RESHARD_HOST_DEVICE inline void store_word(std::byte* at, Type word) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<Type*>(at) = word;
#else
  expect_aligned(at, sizeof(Type));
  std::memcpy(at, &word, sizeof(Type));
#endif
}

}  // namespace reshard
