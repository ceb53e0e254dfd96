#include "stages/plan/draft/layout_text.hpp"

#include <string_view>

namespace reshard {
namespace {

/// "attn.q: (group head dim) hidden": word "attn", part "q", rows "group head dim", rest " hidden".
struct Parts {
  std::string_view word;
  std::string_view part;
  std::string_view rows;
  std::string_view rest;
};

std::optional<Parts> parts_of(std::string_view layout) {
  std::size_t const colon = layout.find(": ");
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view const tensor = layout.substr(0, colon);
  std::size_t const dot = tensor.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  std::string_view const shape = layout.substr(colon + 2);
  Parts parts{tensor.substr(0, dot), tensor.substr(dot + 1), {}, {}};
  if (shape.starts_with('(')) {
    std::size_t const close = shape.find(')');
    if (close == std::string_view::npos || shape.find('|') != std::string_view::npos ||
        shape.substr(1, close - 1).find('(') != std::string_view::npos)
      return std::nullopt;
    parts.rows = shape.substr(1, close - 1);
    parts.rest = shape.substr(close + 1);
  } else {
    std::size_t const space = shape.find(' ');
    parts.rows = shape.substr(0, space);
    parts.rest = space == std::string_view::npos ? std::string_view() : shape.substr(space);
  }
  return parts;
}

}  // namespace

std::optional<std::string> joined_layout(std::span<std::string const> layouts) {
  std::string result;
  std::optional<Parts> first;
  for (std::string const& layout : layouts) {
    auto const parts = parts_of(layout);
    if (!parts || (first && (parts->word != first->word || parts->rest != first->rest)))
      return std::nullopt;
    if (!first) first = parts;
    result += result.empty() ? std::string(parts->word) + ": (" : " | ";
    result.append(parts->part).append(": ").append(parts->rows);
  }
  if (!first) return std::nullopt;
  return result.append(")").append(first->rest);
}

}  // namespace reshard
