#include "core/mapping/maps/toml_keys.hpp"

#include <algorithm>

namespace reshard {
namespace {

/// Behind the text in quotes that begins at `at`; only that of three quotes may have lines.
std::size_t after_quotes(std::string_view toml, std::size_t at) {
  char const quote = toml[at];
  std::string_view const three = toml.substr(at, 3);
  bool const long_text = three.size() == 3 && three[1] == quote && three[2] == quote;
  std::size_t const end_size = long_text ? 3 : 1;
  for (at += end_size; at < toml.size(); ++at) {
    if (quote == '"' && toml[at] == '\\') {
      ++at;
    } else if (!long_text && toml[at] == '\n') {
      return at;
    } else if (toml[at] == quote && (!long_text || toml.substr(at).starts_with(three))) {
      return at + end_size;
    }
  }
  return toml.size();
}

}  // namespace

std::size_t longest_key(std::string_view toml) {
  constexpr std::string_view ends_of_keys = "\n=,{}[]";
  std::size_t longest = 1;
  std::size_t parts = 1;
  for (std::size_t at = 0; at < toml.size();) {
    char const c = toml[at];
    if (c == '"' || c == '\'') {
      at = after_quotes(toml, at);
      continue;
    }
    if (c == '#') {
      at = std::min(toml.find('\n', at), toml.size());
      continue;
    }
    if (c == '.') longest = std::max(longest, ++parts);
    if (ends_of_keys.find(c) != std::string_view::npos) parts = 1;
    ++at;
  }
  return longest;
}

}  // namespace reshard
