#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/base/host_device.hpp"
#include "core/device/kernels/copy_memory.hpp"
#include "core/device/program.hpp"

namespace reshard {

// Elements are computed in groups that fill one 16-byte word of the target, a group for each thread
// at a time.

/// Groups that a thread computes, one after the other; those of a block are adjacent each time.
inline constexpr unsigned groups_per_thread = 4;

/// The number of blocks for `count` elements of `element_bytes` bytes, for any position of the
/// first one in a word.
constexpr std::uint64_t value_blocks(std::uint64_t count, std::uint64_t element_bytes) {
  std::uint64_t const per_block =
      std::uint64_t{threads_per_block} * groups_per_thread * 16 / element_bytes;
  return (count + 16 / element_bytes - 1 + per_block - 1) / per_block;
}

/// [begin, end) of the target's elements; `whole` if they are one aligned 16-byte word.
struct ElementGroup {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool whole = false;
};

/// Group number `number` of `count` elements of `element_bytes` bytes from `to` on. Group 0 ends
/// where the first complete word begins; an address that is not a multiple of the element's size
/// has no complete words. Empty (begin >= end) after the last one.
template <unsigned element_bytes>
RESHARD_HOST_DEVICE inline ElementGroup group_of(std::uint64_t number, std::uint64_t count,
                                                 std::byte const* to) {
  constexpr std::uint64_t size = 16 / element_bytes;
  auto const place = reinterpret_cast<std::uintptr_t>(to) % 16;
  bool const aligned = place % element_bytes == 0;
  std::uint64_t const before = aligned ? place / element_bytes : 0;  // elements that group 0 lacks
  ElementGroup group{number == 0 ? 0 : number * size - before, (number + 1) * size - before, false};
  if (group.end > count) group.end = count;
  group.whole = aligned && group.begin + size == group.end;
  return group;
}

/// Group `round` of the groups_per_thread that a thread of block `block`, counted within the
/// request, computes.
RESHARD_HOST_DEVICE inline std::uint64_t group_number(std::uint64_t block, unsigned round,
                                                      unsigned thread) {
  return (block * groups_per_thread + round) * threads_per_block + thread;
}

namespace detail {

template <class Body, unsigned... i>
RESHARD_HOST_DEVICE inline void run_each(Body& body, std::integer_sequence<unsigned, i...>) {
  (body(std::integral_constant<unsigned, i>{}), ...);
}

}  // namespace detail

/// Calls body(0) to body(count - 1), each index a constant, so that arrays indexed by it stay in
/// registers.
template <unsigned count, class Body>
RESHARD_HOST_DEVICE inline void unrolled(Body body) {
  detail::run_each(body, std::make_integer_sequence<unsigned, count>{});
}

namespace detail {

template <unsigned step, unsigned bytes>
RESHARD_HOST_DEVICE inline void load_by_words(std::byte const* from, std::byte* into) {
  unrolled<bytes / step>([&](auto i) {
    auto const word = load_word<Word<step>>(from + i * step);
    std::memcpy(into + i * step, &word, step);
  });
}

}  // namespace detail

/// Loads `bytes` bytes (a power of two) from any address, in the widest words that its alignment
/// allows.
template <unsigned bytes>
RESHARD_HOST_DEVICE inline void load_bytes(std::byte const* from, std::byte* into) {
  constexpr unsigned widest = bytes < 16 ? bytes : 16;
  auto const place = reinterpret_cast<std::uintptr_t>(from);
  if (place % widest == 0) return detail::load_by_words<widest, bytes>(from, into);
  if constexpr (widest > 4)
    if (place % 4 == 0) return detail::load_by_words<4, bytes>(from, into);
  if constexpr (widest > 2)
    if (place % 2 == 0) return detail::load_by_words<2, bytes>(from, into);
  detail::load_by_words<1, bytes>(from, into);
}

}  // namespace reshard
