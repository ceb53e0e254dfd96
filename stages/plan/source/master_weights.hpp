#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/formats/source_model.hpp"
#include "core/formats/target.hpp"

namespace reshard {

/// The slot for the master weights of a source whose weights are the masters
/// (TargetTraits::masters_alone).
inline constexpr std::string_view own_master_slot = "param";

/// Whether the weights of a checkpoint are its master weights, and its optimizer state has none.
bool holds_masters_alone(Checkpoint const& source, StoredView const& view);

/// Settles which of weights and master weights source and target of a job with optimizer state
/// have. Of a source that has masters alone the weights become the masters rounded to the dtype
/// that its run computes in; for a target that has masters alone these take the place of the
/// weights, which SourceModel::weights keeps. Errors of kind source: weights in other number
/// formats than masters are rounded to.
void settle_masters(Checkpoint const& source, TargetRequest const& request, SourceModel& read);

/// The second of these, for a comparison with a checkpoint that has masters alone.
void put_masters_in_place(SourceModel& read);

}  // namespace reshard
