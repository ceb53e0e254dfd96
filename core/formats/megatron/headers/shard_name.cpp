#include "core/formats/megatron/headers/shard_name.hpp"

#include <charconv>

#include <fmt/format.h>

namespace reshard::megatron {
namespace {

constexpr std::string_view prefix = "mp_rank_";

std::optional<int> parse_number(std::string_view digits) {
  if (digits.empty()) return std::nullopt;
  for (char const c : digits)
    if (c < '0' || c > '9') return std::nullopt;  // from_chars would take a sign
  int value = 0;
  auto const [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value > largest_shard_number)
    return std::nullopt;
  return value;
}

bool names_stage(MeshSizes const& sizes, NameStyle style) {
  return sizes.pp > 1 || (style == NameStyle::full3d && sizes.ep > 1);
}

}  // namespace

std::optional<ShardName> parse_shard_name(std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  ShardName result;
  while (true) {
    auto const cut = name.find('_');
    auto const number = parse_number(name.substr(0, cut));
    if (!number || result.numbers.size() == most_shard_numbers) return std::nullopt;
    result.numbers.push_back(*number);
    if (cut == std::string_view::npos) return result;
    name.remove_prefix(cut + 1);
  }
}

std::string format_shard_name(ShardPlace const& place, MeshSizes const& sizes, NameStyle style) {
  std::string name = fmt::format("{}{:02}", prefix, place.tp);
  if (names_stage(sizes, style)) name += fmt::format("_{:03}", place.pp);
  if (sizes.ep > 1) name += fmt::format("_{:03}", place.ep);
  return name;
}

std::string shard_name_pattern(MeshSizes const& sizes, NameStyle style) {
  std::string pattern = std::string(prefix) + "{tp:02}";
  if (names_stage(sizes, style)) pattern += "_{pp:03}";
  if (sizes.ep > 1) pattern += "_{ep:03}";
  return pattern;
}

}  // namespace reshard::megatron
