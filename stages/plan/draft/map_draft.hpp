#pragma once

#include <string>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "stages/plan/draft/name_groups.hpp"

namespace reshard {

/// A model without a map: its config.json, and its stored tensors.
struct DraftRequest {
  std::string base;  ///< a map of the folder; "" for the nearest
  Json config;
  std::vector<DraftTensor> tensors;
  MapLibrary library;
};

/// A proposal for its map.
struct MapDraft {
  std::string base;                  ///< file name of the map that it inherits from
  std::string model_type;            ///< of the config; "" when it has none
  std::string toml;                  ///< the map, with comments for what a reader must decide
  std::size_t described = 0;         ///< stored tensors that it describes
  std::vector<NameGroup> left;       ///< those that it does not describe
  std::vector<std::string> lacking;  ///< names that it expects and that are not stored
};

/// Proposes a map from the nearest one: prefixes, other names, weights that are stored in one
/// tensor, other words for facts. No map that can describe the config at all is an Error of kind
/// usage.
MapDraft draft_map(DraftRequest const& request);

}  // namespace reshard
