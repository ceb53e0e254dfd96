#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/layout/pieces/placement.hpp"

namespace reshard {

/// The placements on the mesh of tensors with keys that match a pattern ('*', '?').
struct PlacementRule {
  std::string pattern;
  std::vector<Placement> placements;  ///< one per mesh axis
};

/// The boxes in which the tensors of a DCP target are stored.
struct ChunkGrid {
  enum class Kind {
    source,  ///< those of the source
    whole,   ///< one per tensor
    ranks,   ///< Shard(0) over `ranks` ranks
    mesh,    ///< by the first rule whose pattern matches the key
  };
  Kind kind = Kind::source;
  Index ranks = 1;
  Mesh mesh;
  std::vector<PlacementRule> rules;
};

/// "hc_head.*: R R; *.experts.*: S0 S0; *: S0 R". Errors of kind usage show the text.
std::vector<PlacementRule> parse_placement_rules(std::string_view text);

/// The patterns of rules that apply to none of the keys. A rule with more or fewer placements than
/// mesh axes is an Error of kind usage.
std::vector<std::string> idle_rules(ChunkGrid const& grid, std::span<std::string const> keys);

/// The boxes of a tensor; Kind::source is an internal Error. A key that no rule matches, a rule
/// that does not fit the tensor are Errors of kind usage with the key. A tensor without dimensions
/// is always one box.
std::vector<TensorBox> grid_boxes(ChunkGrid const& grid, std::string_view key,
                                  std::span<Index const> shape);

}  // namespace reshard
