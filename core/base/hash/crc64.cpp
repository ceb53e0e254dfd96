#include "core/base/hash/crc64.hpp"

#include <cstring>

#ifdef RESHARD_HAS_ISAL
#include <isa-l/crc64.h>
#endif

namespace reshard {
namespace {

/// powers[k] is x^(8 * 2^k) mod P.
constexpr auto powers = [] {
  std::array<std::uint64_t, 64> table{};
  table[0] = crc64_one >> 8U;
  for (std::size_t k = 1; k < table.size(); ++k)
    table[k] = crc64_product(table[k - 1], table[k - 1]);
  return table;
}();

/// Eight bytes come into the register at once and are shifted out of it at once: x^64.
constexpr Crc64Factor eight_bytes{crc64_product(powers[2], powers[2])};

}  // namespace

std::uint64_t crc64_by_tables(std::span<std::byte const> bytes, std::uint64_t crc) {
  std::byte const* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word = 0;  // the program runs on little-endian machines only
    std::memcpy(&word, at, 8);
    crc = eight_bytes(crc ^ word);
  }
  for (; left > 0; --left, ++at)
    crc =
        (crc >> 8U) ^ eight_bytes.of_byte(
                          7, static_cast<std::uint8_t>(crc ^ std::to_integer<std::uint64_t>(*at)));
  return crc;
}

#ifdef RESHARD_HAS_ISAL
std::uint64_t crc64(std::span<std::byte const> bytes, std::uint64_t crc) {
  constexpr std::size_t too_few_for_a_call = 16;
  if (bytes.size() < too_few_for_a_call) return crc64_by_tables(bytes, crc);
  // ISA-L inverts the register before and after.
  return ~::crc64_ecma_refl(~crc, reinterpret_cast<unsigned char const*>(bytes.data()),
                            bytes.size());
}
#else
std::uint64_t crc64(std::span<std::byte const> bytes, std::uint64_t crc) {
  return crc64_by_tables(bytes, crc);
}
#endif

std::uint64_t crc64_power(std::uint64_t bytes) {
  std::uint64_t power = crc64_one;
  for (std::size_t k = 0; bytes != 0; ++k, bytes >>= 1U)
    if ((bytes & 1U) != 0) power = crc64_product(power, powers[k]);
  return power;
}

std::uint64_t crc64_shifted(std::uint64_t crc, std::uint64_t bytes) {
  return crc == 0 ? 0 : crc64_product(crc, crc64_power(bytes));
}

}  // namespace reshard
