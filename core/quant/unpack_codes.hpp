#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/quant/number_formats.hpp"

// Codes of a few bits, one in each byte: loops of these become vectors.
namespace reshard::quant {

[[gnu::always_inline]] inline void unpack_pairs(std::uint8_t const* __restrict__ pairs,
                                                std::int64_t count, std::uint8_t* __restrict__ to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[2 * i] = pairs[i] & 15U;
    to[2 * i + 1] = static_cast<std::uint8_t>(pairs[i] >> 4U);
  }
}

/// `count` codes of `bits` bits that begin at a bit, one in each byte of `to`. Pre: bits < 8.
[[gnu::always_inline]] inline void unpack(std::span<std::byte const> codes, int bits,
                                          std::int64_t first_bit, std::int64_t count,
                                          std::uint8_t* to) {
  auto const one_at = [&](std::int64_t i) {
    auto const bit = static_cast<std::size_t>(first_bit + i * bits);
    auto window = static_cast<std::uint64_t>(codes[bit / 8]);
    if (static_cast<int>(bit % 8) + bits > 8)
      window |= static_cast<std::uint64_t>(codes[bit / 8 + 1]) << 8U;
    return static_cast<std::uint8_t>((window >> bit % 8) & detail::ones(bits));
  };
  std::int64_t i = 0;
  for (; i < count && (first_bit + i * bits) % 8 != 0; ++i) to[i] = one_at(i);
  if (bits == 4) {
    std::int64_t const pairs = (count - i) / 2;
    unpack_pairs(reinterpret_cast<std::uint8_t const*>(codes.data()) + (first_bit + i * 4) / 8,
                 pairs, to + i);
    i += 2 * pairs;
  }
  // Eight codes are `bits` bytes. The halves of a word move apart, then the halves of these, then
  // theirs; four words are a vector.
  std::uint64_t const fours = detail::ones(4 * bits);
  std::uint64_t const pairs = detail::ones(2 * bits) * 0x0000'0001'0000'0001U;
  std::uint64_t const ones = detail::ones(bits) * 0x0001'0001'0001'0001U;
  auto const step = static_cast<std::size_t>(bits);
  auto at = static_cast<std::size_t>((first_bit + i * bits) / 8);
  for (; i + 32 <= count && at + 3 * step + 8 <= codes.size(); i += 32, at += 4 * step) {
    std::array<std::uint64_t, 4> words;
    for (std::size_t k = 0; k < 4; ++k)
      std::memcpy(&words[k], codes.data() + at + k * step, sizeof words[k]);
    for (std::uint64_t& word : words) {
      word = (word & fours) | (word >> (4 * bits) & fours) << 32U;
      word = (word & pairs) | (word >> (2 * bits) & pairs) << 16U;
      word = (word & ones) | (word >> bits & ones) << 8U;
    }
    std::memcpy(to + i, words.data(), sizeof words);
  }
  for (; i < count; ++i) to[i] = one_at(i);
}

/// Eight codes of 4 bits of each word, in the order that CodeOrder::interleaved names.
[[gnu::always_inline]] inline void unpack_interleaved(std::byte const* __restrict__ words,
                                                      std::int64_t count,
                                                      std::uint8_t* __restrict__ to) {
  // Four codes of 4 bits move to the lowest bits of four 16-bit numbers.
  auto const apart = [](std::uint64_t codes) {
    codes = (codes | codes << 24U) & 0x0000'00ff'0000'00ffU;
    return (codes | codes << 12U) & 0x000f'000f'000f'000fU;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, words + 4 * i, sizeof word);
    std::uint64_t const eight = apart(word & 0xffffU) | apart(word >> 16U) << 8U;
    std::memcpy(to + 8 * i, &eight, sizeof eight);
  }
}

/// One code of each word, from a bit on; what lies beyond the word is in `next`.
[[gnu::always_inline]] inline void unpack_across(std::byte const* __restrict__ words,
                                                 std::byte const* __restrict__ next,
                                                 unsigned first_bit, int bits, std::int64_t count,
                                                 std::uint8_t* __restrict__ to) {
  auto const mask = static_cast<std::uint32_t>(detail::ones(bits));
  if (first_bit + static_cast<unsigned>(bits) <= 32U) {
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint32_t word = 0;
      std::memcpy(&word, words + 4 * i, sizeof word);
      to[i] = static_cast<std::uint8_t>(word >> first_bit & mask);
    }
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t word = 0;
    std::uint32_t rest = 0;
    std::memcpy(&word, words + 4 * i, sizeof word);
    std::memcpy(&rest, next + 4 * i, sizeof rest);
    to[i] = static_cast<std::uint8_t>((word >> first_bit | rest << (32U - first_bit)) & mask);
  }
}

}  // namespace reshard::quant
