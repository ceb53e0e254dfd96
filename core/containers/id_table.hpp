#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/tables/id_table.hpp"
#include "core/base/tables/integers.hpp"

namespace reshard {

/// A number that differs from process to process, so that no crafted file has names that all fall
/// into one slot of a table.
extern std::uint64_t const hash_seed;

/// Both halves of a product of 128 bits: every bit of the result depends on every bit of the hash
/// and the word.
inline std::uint64_t hash_step(std::uint64_t hash, std::uint64_t word) {
  auto const product = static_cast<unsigned __int128>(hash ^ word ^ 0x9e3779b97f4a7c15) *
                       (hash_seed ^ std::rotl(hash, 32));
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t hash_of(std::string_view text);
inline std::uint64_t hash_of(std::span<Index const> numbers) {
  std::uint64_t hash = hash_seed ^ numbers.size();
  for (Index const number : numbers) hash = hash_step(hash, static_cast<std::uint64_t>(number));
  return hash_step(hash, hash_seed);
}
inline std::uint64_t hash_of(std::uint32_t first, std::uint32_t second) {
  return hash_step(hash_step(hash_seed, std::uint64_t{first} << 32 | second), hash_seed);
}

}  // namespace reshard
