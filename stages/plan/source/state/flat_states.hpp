#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/formats/source_model.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// Adds optimizer state that lies in flat buffers to the catalogue of a Megatron source: the slots
/// of the model get pieces and exist. Which parameter lies where follows from the layout in `args`
/// and the sizes of the buckets. Pre: the catalogue has the weights, the model slots for the
/// view's states. `frozen`: patterns of the names of parameters that the optimizer does not have
/// (BufferModel::trained). Errors of kind source: buffers that another layout than that of `args`
/// gives.
void add_flat_states(Checkpoint const& source, std::vector<std::string> const& frozen,
                     SourceModel& read);

}  // namespace reshard
