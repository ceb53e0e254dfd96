#include "core/base/hash/crc32.hpp"

#include <array>

#ifdef RESHARD_HAS_ISAL
#include <isa-l/crc.h>
#else
#include <zlib.h>
#endif

namespace reshard {
namespace {

/// zip's polynomial, bit-reversed: bit 31 is x^0, bit 0 is x^31. A CRC register holds a polynomial
/// in the same order.
constexpr std::uint32_t polynomial = 0xedb88320U;
constexpr std::uint32_t one = 0x80000000U;

/// a(x) * b(x) mod P.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = one; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ polynomial : b >> 1;
  }
  return product;
}

/// powers[k] is x^(8 * 2^k) mod P: the factor of a register for 2^k zero bytes.
constexpr auto powers = [] {
  std::array<std::uint32_t, 64> table{};
  table[0] = one >> 8;
  for (std::size_t k = 1; k < table.size(); ++k) table[k] = multiply(table[k - 1], table[k - 1]);
  return table;
}();

/// The register after `bytes` more zero bytes.
std::uint32_t shifted(std::uint32_t crc, std::uint64_t bytes) {
  for (std::size_t k = 0; bytes != 0; ++k, bytes >>= 1)
    if ((bytes & 1) != 0) crc = multiply(powers[k], crc);
  return crc;
}

}  // namespace

#ifdef RESHARD_HAS_ISAL
std::uint32_t crc32(std::span<std::byte const> bytes, std::uint32_t crc) {
  if (bytes.empty()) return crc;
  return ::crc32_gzip_refl(crc, reinterpret_cast<unsigned char const*>(bytes.data()), bytes.size());
}
#else
std::uint32_t crc32(std::span<std::byte const> bytes, std::uint32_t crc) {
  if (bytes.empty()) return crc;  // zlib takes a null pointer for "start again"
  return static_cast<std::uint32_t>(
      ::crc32_z(crc, reinterpret_cast<unsigned char const*>(bytes.data()), bytes.size()));
}
#endif

std::uint32_t crc32_share(std::span<std::byte const> piece, std::uint64_t after_bytes) {
  // crc32() inverts the register before and after; starting from all ones and inverting once more
  // leaves the plain remainder of the piece, which is linear: the remainder of a byte sequence is
  // the xor of the remainders of its pieces, each moved to its offset.
  std::uint32_t const remainder = ~crc32(piece, 0xffffffffU);
  return shifted(remainder, after_bytes);
}

std::uint32_t crc32_share_of(std::uint32_t crc_of_piece, std::uint64_t piece_bytes,
                             std::uint64_t after_bytes) {
  return shifted(crc_of_piece ^ crc32_of_zeros(piece_bytes), after_bytes);
}

void Crc32Pieces::add(std::uint64_t offset_bytes, std::span<std::byte const> piece) {
  if (piece.empty()) return;
  if (offset_bytes < at_) {
    share_ = share();
    register_ = 0;
  } else if (register_ != 0 && offset_bytes > at_) {
    if (std::uint64_t const gap = offset_bytes - at_; gap != gap_bytes_) {
      gap_bytes_ = gap;
      gap_factor_ = shifted(one, gap);
    }
    register_ = multiply(gap_factor_, register_);
  }
  register_ = ~crc32(piece, ~register_);
  at_ = offset_bytes + piece.size();
}

std::uint32_t Crc32Pieces::share() const { return share_ ^ shifted(register_, whole_bytes_ - at_); }

std::uint32_t crc32_of_zeros(std::uint64_t bytes) { return ~shifted(0xffffffffU, bytes); }

}  // namespace reshard
