#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tables/integers.hpp"
#include "core/base/text/json.hpp"
#include "core/formats/huggingface/config/config.hpp"

namespace reshard {

/// Changes of a model in numbers, which a config.json or args state.
struct FactChanges {
  Index layers = 0;        ///< decoder layers of the source
  Index depth_layers = 0;  ///< of multi-token prediction, numbered behind them
  bool drop_depths = false;
  std::optional<std::vector<Index>> kept_layers;  ///< of the decoder; nothing: all
  Index experts = 0;
  std::vector<std::vector<Index>> kept_experts;  ///< by layer of the source, empty where it has
                                                 ///< none; no layers: all experts are kept
  Index kept_expert_count = 0;
  Index vocab = 0;  ///< the new size; 0: as it is
};

/// The members that the facts, or the object at `inner` in them, have otherwise: numbers of layers,
/// experts and tokens, lists with one item for each layer, lists of layers. An Error of kind usage
/// that begins with `place` where a member has no value that says the same of the layers, experts
/// or tokens that are left: an interval of layers, a group of experts, an id of a token.
std::vector<huggingface::ConfigPatch> changed_facts(Json const& facts, std::string_view inner,
                                                    FactChanges const& changes,
                                                    std::string const& place);

}  // namespace reshard
