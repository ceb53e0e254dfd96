#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/formats/source_model.hpp"
#include "core/formats/targets/target.hpp"

namespace reshard {

/// The slot for the master weights of a source whose weights are the masters
/// (TargetTraits::masters_alone).
inline constexpr std::string_view own_master_slot = "param";

/// Whether a checkpoint has optimizer state, and its weights are the master weights.
bool holds_masters_alone(Checkpoint const& source, StoredView const& view);

/// Settles which of weights and master weights source and target of a job with optimizer state
/// have. Of a source that has masters alone the weights become the masters rounded to the dtype
/// that its run computes in; for a target that has masters alone these take the place of the
/// weights, which SourceTensors::weights keeps. Errors of kind source: master weights that are not
/// F32; weights in other number formats than masters are rounded to.
void settle_masters(Checkpoint const& source, PlanRequest const& request, SourceModel& read);

/// The first of these: where the weights are the masters, both are there. Nothing happens where
/// they are not, or where no state is read. `warn`: SourceModel::warnings
/// says how many are rounded. `round`: else the weights are the masters, too.
void split_masters(Checkpoint const& source, SourceModel& read, bool warn = false,
                   bool round = true);

/// For a target that needs master weights (TargetTraits::needs_masters), of a source without
/// optimizer state: adds the slot of masters, which have the values of the weights in F32. Weights
/// in other number formats get none.
void add_masters(SourceModel& read);

}  // namespace reshard
