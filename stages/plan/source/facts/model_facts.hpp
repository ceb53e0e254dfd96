#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/formats/huggingface/config/config.hpp"
#include "core/mapping/model.hpp"

namespace reshard {

/// An axis to which two descriptions of one model give different sizes.
struct AxisConflict {
  std::string axis;
  Index by_config = 0;
  Index by_args = 0;
};

/// The first axis that both models have, that tensors of the first are made of, and whose sizes
/// differ. A vocabulary that `args` do not state counts padded rows there and may be larger.
std::optional<AxisConflict> axis_conflict(Model const& by_config, Model const& by_args,
                                          Json const& args);

/// The members of config.json that a family's [config] makes from a model which args describe.
/// "rope_scaling.factor" is a member of a member, left out where its value is null.
Json config_from_args(MapFile const& family, Model const& described);

/// The members of a config.json that count layers for multi-token prediction, set to those that are
/// there.
std::vector<huggingface::ConfigPatch> prediction_layer_changes(MapFile const& family,
                                                               Json const& config, Index there);

}  // namespace reshard
