#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/formats/megatron/state/buffer_shares.hpp"
#include "core/formats/source_model.hpp"

namespace reshard {

/// Adds state in the shapes of a rank's parameters to the catalogue of a Megatron source, and marks
/// it as existing. Which parameter is meant follows from the order of registration and from the
/// settings of the groups. Errors of kind source: groups that the model's parameters do not fit.
void add_state_list(Checkpoint const& source, StateList const& list,
                    std::span<megatron::BufferShare const> rank,
                    megatron::BufferShares const& shares, Side const& side, MeshPlace const& place,
                    SourceModel& read);

}  // namespace reshard
