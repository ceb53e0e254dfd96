#include "core/base/text/wire.hpp"

#include <bit>
#include <cstring>

#include "core/base/error.hpp"

namespace reshard {

WireWriter& WireWriter::byte(std::uint8_t value) {
  bytes_.push_back(static_cast<char>(value));
  return *this;
}

WireWriter& WireWriter::word(std::uint64_t value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  bytes_.append(bytes, sizeof value);
  return *this;
}

WireWriter& WireWriter::number(std::uint64_t value) {
  for (; value >= 0x80U; value >>= 7U) byte(static_cast<std::uint8_t>(value | 0x80U));
  return byte(static_cast<std::uint8_t>(value));
}

WireWriter& WireWriter::integer(std::int64_t value) {
  return number((static_cast<std::uint64_t>(value) << 1U) ^
                static_cast<std::uint64_t>(value >> 63));
}

WireWriter& WireWriter::raw(std::string_view bytes) {
  bytes_ += bytes;
  return *this;
}

std::uint64_t WireWriter::bits_of(double value) { return std::bit_cast<std::uint64_t>(value); }

std::string_view WireReader::raw(std::uint64_t bytes) {
  good_ = good_ && bytes <= left_.size();
  if (!good_) return {};
  std::string_view const taken = left_.substr(0, bytes);
  left_.remove_prefix(bytes);
  return taken;
}

std::uint8_t WireReader::byte() {
  std::string_view const one = raw(1);
  return good_ ? static_cast<std::uint8_t>(one.front()) : std::uint8_t{0};
}

std::uint64_t WireReader::word() {
  std::uint64_t value = 0;
  std::string_view const bytes = raw(sizeof value);
  if (good_) std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

std::uint64_t WireReader::number() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    std::uint8_t const part = byte();
    bool const too_large = shift == 63 && part > 1;
    bool const too_long = shift > 0 && part == 0;  // every value has one form
    if (too_large || too_long) break;
    value |= static_cast<std::uint64_t>(part & 0x7fU) << shift;
    if (part < 0x80U) return value;
  }
  good_ = false;
  return 0;
}

std::int64_t WireReader::integer() {
  std::uint64_t const value = number();
  return static_cast<std::int64_t>((value >> 1U) ^ (~(value & 1U) + 1U));
}

double WireReader::real() { return std::bit_cast<double>(word()); }

std::uint64_t WireReader::number_up_to(std::uint64_t largest) {
  std::uint64_t const value = number();
  good_ = good_ && value <= largest;
  return good_ ? value : 0;
}

std::size_t WireReader::count(std::uint64_t bytes_each) {
  return checked_count(number(), bytes_each);
}

std::size_t WireReader::word_count(std::uint64_t bytes_each) {
  return checked_count(word(), bytes_each);
}

std::size_t WireReader::checked_count(std::uint64_t value, std::uint64_t bytes_each) {
  good_ = good_ && value <= left_.size() / bytes_each;
  return good_ ? static_cast<std::size_t>(value) : 0;
}

void WireReader::check() const {
  if (!good_)
    fail(ErrorKind::internal,
         "{}: the bytes received cannot be decoded. This is a bug of reshard: please report it.",
         what_);
}

void WireReader::finish() const {
  check();
  if (!left_.empty())
    fail(ErrorKind::internal,
         "{}: {} bytes are left over. This is a bug of reshard: please report it.", what_,
         left_.size());
}

}  // namespace reshard
