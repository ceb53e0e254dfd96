#include "core/containers/hdf5/names.hpp"

#include <fmt/format.h>

namespace reshard::hdf5 {
namespace {

/// The code point that begins `rest`, and its bytes; 0 bytes if it is not UTF-8 (overlong, a
/// surrogate, above U+10FFFF, cut short).
struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 0;
};

CodePoint first_code_point(std::string_view rest) {
  auto const byte = [&](std::size_t i) {
    return std::uint32_t{static_cast<unsigned char>(rest[i])};
  };
  std::uint32_t const lead = byte(0);
  if (lead < 0x80U) return {lead, 1};
  std::size_t const bytes = lead >= 0xf0U ? 4 : lead >= 0xe0U ? 3 : 2;
  if (lead < 0xc2U || lead > 0xf4U || rest.size() < bytes) return {};
  std::uint32_t value = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return {};
    value = value << 6U | (byte(i) & 0x3fU);
  }
  std::uint32_t const least = bytes == 4 ? 0x10000U : bytes == 3 ? 0x800U : 0x80U;
  bool const surrogate = value >= 0xd800U && value < 0xe000U;
  if (value < least || value > 0x10ffffU || surrogate) return {};
  return {value, bytes};
}

template <class Allowed>
bool consists_of(std::string_view bytes, Allowed allowed) {
  while (!bytes.empty()) {
    CodePoint const point = first_code_point(bytes);
    if (point.bytes == 0 || !allowed(point.value)) return false;
    bytes.remove_prefix(point.bytes);
  }
  return true;
}

}  // namespace

bool is_text(std::string_view bytes) {
  return consists_of(bytes, [](std::uint32_t point) { return point != 0; });
}

bool is_line(std::string_view bytes) {
  return consists_of(bytes, [](std::uint32_t point) {
    return point >= 0x20U && (point < 0x7fU || point >= 0xa0U);
  });
}

std::optional<std::string> name_problem(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (name.size() > largest_name_bytes)
    return fmt::format("it has {} bytes, more than {}", name.size(), largest_name_bytes);
  if (!is_line(name)) return "it is not UTF-8 or has a control character";
  for (std::string_view rest = name;;) {
    std::size_t const end = rest.find('/');
    std::string_view const part = rest.substr(0, end);
    if (part == "." || part == "..") return fmt::format("'{}' is one of its parts", part);
    if (end == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(end + 1);
  }
}

std::string link_from_name(std::string_view name) {
  std::string link;
  link.reserve(name.size());
  for (char const letter : name) {
    if (letter == '/') {
      link += "%2F";
    } else if (letter == '%') {
      link += "%25";
    } else {
      link += letter;
    }
  }
  return link;
}

std::optional<std::string> name_from_link(std::string_view link) {
  std::string name;
  name.reserve(link.size());
  for (std::size_t i = 0; i < link.size(); ++i) {
    if (link[i] == '/') return std::nullopt;
    if (link[i] != '%') {
      name += link[i];
      continue;
    }
    std::string_view const code = link.substr(i, 3);
    if (code != "%2F" && code != "%25") return std::nullopt;
    name += code == "%2F" ? '/' : '%';
    i += 2;
  }
  return name;
}

std::string shown(std::string_view bytes) {
  constexpr std::size_t most = 200;
  bool const cut = bytes.size() > most;
  std::string out;
  for (std::string_view rest = bytes.substr(0, most); !rest.empty();) {
    std::size_t const length = first_code_point(rest).bytes;
    if (cut && length == 0 && rest.size() < 4) break;  // the cut went through a character
    if (length != 0 && is_line(rest.substr(0, length))) {
      out += rest.substr(0, length);
    } else {
      for (char const byte : rest.substr(0, length == 0 ? 1 : length))
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    rest.remove_prefix(length == 0 ? 1 : length);
  }
  return cut ? out + "…" : out;
}

}  // namespace reshard::hdf5
