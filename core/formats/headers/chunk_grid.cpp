#include "core/formats/headers/chunk_grid.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

std::string_view trimmed(std::string_view text) {
  std::size_t const first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

}  // namespace

std::vector<PlacementRule> parse_placement_rules(std::string_view text) {
  std::vector<PlacementRule> rules;
  for (std::size_t at = 0; at <= text.size();) {
    std::size_t const end = std::min(text.find(';', at), text.size());
    std::string_view const rule = trimmed(text.substr(at, end - at));
    at = end + 1;
    if (rule.empty()) continue;
    std::size_t const colon = rule.rfind(':');
    if (colon == std::string_view::npos || trimmed(rule.substr(0, colon)).empty())
      fail(ErrorKind::usage,
           "[target] placements: '{}' is not a rule. Write a pattern, a colon and one placement "
           "for each mesh axis, such as \"*: S0 R\".",
           rule);
    try {
      rules.push_back(
          {std::string(trimmed(rule.substr(0, colon))), parse_placements(rule.substr(colon + 1))});
    } catch (Error const& error) {
      throw Error(ErrorKind::usage,
                  fmt::format("[target] placements, rule '{}': {}", rule, error.sentence()));
    }
  }
  return rules;
}

std::vector<std::string> idle_rules(ChunkGrid const& grid, std::span<std::string const> keys) {
  for (PlacementRule const& rule : grid.rules)
    if (rule.placements.size() != grid.mesh.axes().size())
      fail(ErrorKind::usage,
           "[target] placements, rule '{}': {} placements for {} mesh axes. Give one for each.",
           rule.pattern, rule.placements.size(), grid.mesh.axes().size());
  std::vector<bool> used(grid.rules.size(), false);
  for (std::string const& key : keys) {
    auto const rule =
        std::find_if(grid.rules.begin(), grid.rules.end(),
                     [&](PlacementRule const& each) { return matches_glob(each.pattern, key); });
    if (rule != grid.rules.end()) used[static_cast<std::size_t>(rule - grid.rules.begin())] = true;
  }
  std::vector<std::string> idle;
  for (std::size_t r = 0; r < used.size(); ++r)
    if (!used[r]) idle.push_back(grid.rules[r].pattern);
  return idle;
}

std::vector<TensorBox> grid_boxes(ChunkGrid const& grid, std::string_view key,
                                  std::span<Index const> shape) {
  RESHARD_EXPECT(grid.kind != ChunkGrid::Kind::source);
  if (grid.kind == ChunkGrid::Kind::whole || shape.empty())
    return {{std::vector<Index>(shape.size(), 0), {shape.begin(), shape.end()}}};
  if (grid.kind == ChunkGrid::Kind::ranks) {
    Placement const rows{Placement::Kind::shard, 0, 1};
    return placed_boxes(shape, Mesh({{"ranks", grid.ranks}}), std::span(&rows, 1));
  }
  for (PlacementRule const& rule : grid.rules) {
    if (!matches_glob(rule.pattern, key)) continue;
    try {
      return placed_boxes(shape, grid.mesh, rule.placements);
    } catch (Error const& error) {
      throw Error(ErrorKind::usage, fmt::format("[target] placements, rule '{}' for '{}': {}",
                                                rule.pattern, key, error.sentence()));
    }
  }
  fail(
      ErrorKind::usage,
      "[target] placements: no rule matches '{}'. Add a last rule for all others, such as \"*: {}\".",
      key, grid.mesh.axes().size() > 1 ? "S0 R" : "S0");
}

}  // namespace reshard
