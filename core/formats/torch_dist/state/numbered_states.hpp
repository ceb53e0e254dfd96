#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/stored_view.hpp"

namespace reshard::dcp {

// Optimizer state under the numbers of parameters, as --ckpt-format torch_dcp of Megatron-LM saves
// it: "optimizer.optimizer.state.7.exp_avg" of parameter 7, counted through all groups, and
// "optimizer.fp32_from_fp16_params.1.0", the master weight of the first in group 1. Source:
// Float16OptimizerWithFloat16Params in megatron/core/optimizer/optimizer.py, 0.19.

/// Before the number of a group and the name of one of its settings.
inline constexpr std::string_view numbered_settings = "optimizer.optimizer.param_groups.";

/// Adds the tensors (indices in StoredTable::tensors) to the view's states and lists. False,
/// without a change, if they do not fit the groups of the common state, or if there are steps of
/// single parameters.
bool add_numbered_states(Checkpoint const& checkpoint, std::span<std::size_t const> tensors,
                         StoredView& view);

}  // namespace reshard::dcp
