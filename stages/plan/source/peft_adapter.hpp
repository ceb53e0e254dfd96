#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/mapping/map_file.hpp"
#include "core/mapping/side.hpp"
#include "stages/plan/source/low_rank_pairs.hpp"

namespace reshard {

/// The weights that the names of a folder of peft may mean: "model.layers.0.mlp.up_proj.weight",
/// and parameters that adapter_config.json names.
std::vector<std::string> peft_weights(Checkpoint const& adapter);

/// What a peft folder (adapter_model.safetensors, adapter_config.json) adds to the weights of a
/// model. `family` gives its modules their names; `has` answers for names that the adapter has none
/// like. Numbers of files begin at first_file. Errors of kind source: another kind of adapter, a
/// tensor that belongs to no weight of the model, shapes that disagree.
LowRankPairs peft_pairs(Checkpoint const& adapter, Model const& model, MapFile const& family,
                        std::function<bool(std::string_view)> const& has, std::uint32_t first_file);

}  // namespace reshard
