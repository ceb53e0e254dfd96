#include "core/base/text/yaml_text.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

namespace reshard {
namespace {

/// Whether a key is read as a text without quotes.
bool is_word(std::string_view text) {
  auto const letter = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
  auto const digit = [](char c) { return c >= '0' && c <= '9'; };
  static constexpr std::array<std::string_view, 9> constants = {"y",   "n",    "yes",  "no",   "on",
                                                                "off", "true", "null", "false"};
  return !text.empty() && letter(text.front()) &&
         std::ranges::all_of(text, [&](char c) { return letter(c) || digit(c); }) &&
         std::ranges::find(constants, text) == constants.end();
}

/// YAML 1.1 needs a point and a sign in 1.0e+20.
std::string number(Json const& value) {
  double const real = *value.real();
  if (std::isnan(real)) return ".nan";
  if (std::isinf(real)) return real > 0 ? ".inf" : "-.inf";
  std::string text = value.dump();
  std::size_t const exponent = text.find('e');
  std::string tail = exponent == std::string::npos ? "" : text.substr(exponent);
  text.resize(text.size() - tail.size());
  if (text.find('.') == std::string::npos) text += ".0";
  bool const unsigned_exponent = !tail.empty() && tail[1] != '-' && tail[1] != '+';
  return unsigned_exponent ? fmt::format("{}e+{}", text, tail.substr(1)) : text + tail;
}

class Writer {
 public:
  std::string text;

  void write(Json const& value, int depth) {
    if (auto const* members = value.members(); members != nullptr && !members->empty()) {
      for (auto const& [key, member] : *members) {
        begin(depth);
        text += is_word(key) ? key : json_quoted(key);
        text += ':';
        inner(member, depth);
      }
    } else if (auto const* items = value.items(); items != nullptr && !items->empty()) {
      for (Json const& item : *items) {
        begin(depth);
        text += '-';
        inner(item, depth);
      }
    } else {
      text += value.real() != nullptr ? number(value) : value.dump();
      text += '\n';
    }
  }

 private:
  void begin(int depth) { text.append(static_cast<std::size_t>(depth) * 2, ' '); }

  void inner(Json const& value, int depth) {
    bool const members = value.members() != nullptr && !value.members()->empty();
    bool const items = value.items() != nullptr && !value.items()->empty();
    text += members || items ? '\n' : ' ';
    write(value, depth + 1);
  }
};

}  // namespace

std::string yaml_text(Json const& value) {
  Writer writer;
  writer.write(value, 0);
  return std::move(writer.text);
}

}  // namespace reshard
