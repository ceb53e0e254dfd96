#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>

#include "core/base/tables/integers.hpp"

namespace reshard::mlite {

// Words for all readers of Megatron Lite's names.

inline constexpr std::string_view layers = "layers.";
inline constexpr std::array<std::string_view, 2> embeddings = {"embed.embedding.weight",
                                                               "embed_tokens.embedding.weight"};
inline constexpr std::size_t most_digits = 6;  // of a stage, a layer, an expert

/// Takes a number off the front; nothing when there is none, or a long one.
inline std::optional<Index> take_number(std::string_view& text) {
  std::size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  if (digits == 0 || digits > most_digits) return std::nullopt;
  Index value = 0;
  std::from_chars(text.data(), text.data() + digits, value);
  text.remove_prefix(digits);
  return value;
}

/// Takes this part off the front, where the text begins with it.
inline bool take(std::string_view& text, std::string_view part) {
  if (!text.starts_with(part)) return false;
  text.remove_prefix(part.size());
  return true;
}

}  // namespace reshard::mlite
