#include "core/containers/torch/pickle/pickle_text.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <vector>

namespace reshard::pickle {
namespace {

std::uint32_t byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

/// How many continuation bytes follow this first byte, or -1.
int continuation_count(std::uint32_t first) {
  if (first < 0x80) return 0;
  if (first >= 0xc2 && first < 0xe0) return 1;
  if (first >= 0xe0 && first < 0xf0) return 2;
  return first >= 0xf0 && first < 0xf5 ? 3 : -1;
}

/// The code point at `at`, which moves past it; nullopt if malformed or not the shortest form.
std::optional<std::uint32_t> next_code_point(std::string_view text, std::size_t& at) {
  std::uint32_t const first = byte_at(text, at);
  int const more = continuation_count(first);
  if (more < 0 || text.size() - at < static_cast<std::size_t>(more) + 1) return std::nullopt;
  std::uint32_t code = more == 0 ? first : first & (0x3fU >> more);
  for (int i = 0; i < more; ++i) {
    std::uint32_t const byte = byte_at(text, ++at);
    if ((byte & 0xc0) != 0x80) return std::nullopt;
    code = code << 6 | (byte & 0x3f);
  }
  ++at;
  constexpr std::uint32_t smallest[] = {0, 0x80, 0x800, 0x10000};
  if (code < smallest[more] || code > 0x10ffff) return std::nullopt;
  return code;
}

void append_utf8(std::string& out, std::uint32_t code) {
  auto const put = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}

std::optional<std::uint32_t> number_in(std::string_view digits, int base) {
  std::uint32_t value = 0;
  auto const [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc{} || end != digits.data() + digits.size() || digits.empty())
    return std::nullopt;
  return value;
}

/// The escape whose letter is at `at`; moves past it and appends its byte (none for an escaped
/// newline).
bool append_escape(std::string_view text, std::size_t& at, std::string& out) {
  char const letter = text[at++];
  constexpr std::string_view letters = "\\'\"abfnrtv";
  constexpr std::string_view meanings = "\\'\"\a\b\f\n\r\t\v";
  if (std::size_t const found = letters.find(letter); found != std::string_view::npos) {
    out.push_back(meanings[found]);
    return true;
  }
  if (letter == 'x') {
    auto const code = text.size() - at >= 2 ? number_in(text.substr(at, 2), 16) : std::nullopt;
    if (!code) return false;
    at += 2;
    out.push_back(static_cast<char>(*code));
    return true;
  }
  if (letter < '0' || letter > '7') {  // Python keeps an unknown escape as it stands
    out.push_back('\\');
    out.push_back(letter);
    return true;
  }
  std::uint32_t code = static_cast<std::uint32_t>(letter - '0');
  for (int more = 0; more < 2 && at < text.size() && text[at] >= '0' && text[at] <= '7'; ++more)
    code = code * 8 + static_cast<std::uint32_t>(text[at++] - '0');
  out.push_back(static_cast<char>(code & 0xff));
  return true;
}

/// number = number * factor + more, lowest word first.
void times_plus(std::vector<std::uint32_t>& number, std::uint32_t factor, std::uint32_t more) {
  std::uint64_t carry = more;
  for (std::uint32_t& word : number) {
    carry += std::uint64_t{word} * factor;
    word = static_cast<std::uint32_t>(carry);
    carry >>= 32;
  }
  if (carry != 0) number.push_back(static_cast<std::uint32_t>(carry));
}

/// Little-endian, of decimal digits. By many digits at a time: digit by digit a long number would
/// take a thousand times as long as its bytes to read.
std::string bytes_from_digits(std::string_view digits) {
  constexpr std::size_t step = 9;
  std::vector<std::uint32_t> number;
  while (!digits.empty()) {
    std::string_view const some = digits.substr(0, step);
    std::uint32_t factor = 1;
    std::uint32_t value = 0;
    for (char const digit : some) {
      factor *= 10;
      value = value * 10 + static_cast<std::uint32_t>(digit - '0');
    }
    times_plus(number, factor, value);
    digits.remove_prefix(some.size());
  }
  std::string bytes;
  for (std::uint32_t const word : number)
    for (int shift = 0; shift < 32; shift += 8)
      bytes.push_back(static_cast<char>(word >> shift & 0xff));
  return bytes;
}

void negate(std::string& bytes) {
  std::uint32_t carry = 1;
  for (char& byte : bytes) {
    carry += static_cast<unsigned char>(~static_cast<unsigned char>(byte));
    byte = static_cast<char>(carry & 0xff);
    carry >>= 8;
  }
}

/// Removes bytes that only repeat the sign.
void shorten(std::string& bytes) {
  auto const negative = [&](std::size_t at) { return (byte_at(bytes, at) & 0x80) != 0; };
  while (bytes.size() > 1) {
    std::uint32_t const sign = negative(bytes.size() - 2) ? 0xff : 0;
    if (byte_at(bytes, bytes.size() - 1) != sign) break;
    bytes.pop_back();
  }
}

}  // namespace

bool is_utf8(std::string_view bytes) {
  auto const is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::ranges::all_of(bytes, is_ascii)) return true;
  for (std::size_t at = 0; at < bytes.size();)
    if (!next_code_point(bytes, at)) return false;
  return true;
}

std::optional<std::string> latin1_from_utf8(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    auto const code = next_code_point(text, at);
    if (!code || *code > 0xff) return std::nullopt;
    bytes.push_back(static_cast<char>(*code));
  }
  return bytes;
}

std::string utf8_from_latin1(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size(); ++at) append_utf8(text, byte_at(bytes, at));
  return text;
}

std::optional<std::string> utf8_from_raw_unicode_escape(std::string_view line) {
  std::string text;
  for (std::size_t at = 0; at < line.size();) {
    // A backslash starts an escape only when u or U follows; Python writes a backslash of the text
    // itself as \u005c.
    bool const escape =
        line[at] == '\\' && at + 1 < line.size() && (line[at + 1] == 'u' || line[at + 1] == 'U');
    if (!escape) {
      append_utf8(text, byte_at(line, at++));
      continue;
    }
    std::size_t const digits = line[at + 1] == 'u' ? 4 : 8;
    auto const code =
        line.size() - at - 2 >= digits ? number_in(line.substr(at + 2, digits), 16) : std::nullopt;
    if (!code || *code > 0x10ffff) return std::nullopt;
    append_utf8(text, *code);
    at += 2 + digits;
  }
  return text;
}

std::optional<std::string> unquoted(std::string_view line) {
  if (line.size() < 2 || line.front() != line.back() ||
      (line.front() != '\'' && line.front() != '"'))
    return std::nullopt;
  line = line.substr(1, line.size() - 2);
  std::string text;
  for (std::size_t at = 0; at < line.size();) {
    if (line[at] != '\\') {
      text.push_back(line[at++]);
      continue;
    }
    if (++at == line.size() || !append_escape(line, at, text)) return std::nullopt;
  }
  return text;
}

Node integer_from_little_endian(std::string_view bytes) {
  std::string number(bytes);
  shorten(number);
  if (number.size() > 8) return {.kind = Kind::big_integer, .text = std::move(number)};
  std::uint64_t value =
      !number.empty() && (byte_at(number, number.size() - 1) & 0x80) != 0 ? ~std::uint64_t{0} : 0;
  for (std::size_t at = number.size(); at > 0; --at) value = value << 8 | byte_at(number, at - 1);
  return {.kind = Kind::integer, .integer = static_cast<std::int64_t>(value)};
}

std::optional<Node> integer_from_decimal(std::string_view digits) {
  bool const minus = digits.starts_with('-');
  if (minus || digits.starts_with('+')) digits.remove_prefix(1);
  constexpr std::size_t most_digits =
      largest_integer_bytes * 12 / 5;  // 2.4 digits a byte, a little less than the true 2.408
  if (digits.empty() || digits.size() > most_digits) return std::nullopt;
  if (digits.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  std::string bytes = bytes_from_digits(digits);
  bytes.push_back(0);  // room for the sign
  if (minus) negate(bytes);
  return integer_from_little_endian(bytes);
}

}  // namespace reshard::pickle
