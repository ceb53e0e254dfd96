#pragma once

#include "core/containers/torch/pickle.hpp"
#include "core/formats/checkpoint.hpp"
#include "core/formats/run_record.hpp"

namespace reshard {

/// {"optimizer": …} as the common state of torch_dist holds it, of a source in rank files: the
/// parameter groups that any of the ranks has, and the loss scale. Its tensors are the record's.
/// Steps that differ are an Error of kind source. Pre: source.rank_states.
pickle::Document rank_settings(Checkpoint const& source, RunRecord const& record);

}  // namespace reshard
