#include "core/mapping/expressions/name_template.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

namespace reshard {
namespace {

bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  });
}

std::optional<Index> number(std::string_view text) {
  Index value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// "decoder", "2*decoder" or "2*decoder+1"; false for anything else.
bool read_place(std::string_view text, NameTemplate::Segment& segment) {
  NameTemplate::Segment read;
  if (std::size_t const star = text.find('*'); star != std::string_view::npos) {
    auto const stride = number(text.substr(0, star));
    if (!stride || *stride == 0) return false;
    read.stride = *stride;
    text.remove_prefix(star + 1);
  }
  if (std::size_t const plus = text.find('+'); plus != std::string_view::npos) {
    auto const first = number(text.substr(plus + 1));
    if (!first) return false;
    read.first = *first;
    text = text.substr(0, plus);
  }
  if (!is_word(text)) return false;
  segment.place = text;
  segment.stride = read.stride;
  segment.first = read.first;
  return true;
}

int find_macro(std::vector<MapMacro> const& macros, std::string_view name) {
  for (std::size_t i = 0; i < macros.size(); ++i)
    if (macros[i].name == name) return static_cast<int>(i);
  return -1;
}

}  // namespace

NameTemplate NameTemplate::parse(std::string_view text, std::vector<MapMacro> const& macros,
                                 std::string_view place) {
  NameTemplate result;
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t const open = text.find('{', at);
    Segment segment;
    segment.literal = text.substr(at, open == std::string_view::npos ? open : open - at);
    if (open == std::string_view::npos) {
      result.segments_.push_back(std::move(segment));
      break;
    }
    std::size_t const close = text.find('}', open);
    if (close == std::string_view::npos)
      fail(ErrorKind::usage, "{}: '{}': the field that opens at column {} is not closed with '}}'.",
           place, text, open + 1);
    std::string_view field = text.substr(open + 1, close - open - 1);
    segment.macro = find_macro(macros, field);
    if (segment.macro < 0) {
      std::size_t const equals = field.find('=');
      if (equals != std::string_view::npos && field.substr(equals).substr(0, 2) != "==" &&
          read_place(field.substr(0, equals), segment))
        field = field.substr(equals + 1);
      segment.expression = Expression::parse(field, place);
    }
    result.segments_.push_back(std::move(segment));
    at = close + 1;
  }
  return result;
}

}  // namespace reshard
