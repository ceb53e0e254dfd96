#pragma once

#include "core/formats/format.hpp"
#include "core/formats/source_model.hpp"
#include "stages/plan/adapter/low_rank_pairs.hpp"

namespace reshard {

/// Makes the weights that JoinedCheckpoints::adapter adapts merged ones, in the catalogue; nothing where
/// the source has no adapter. Errors: usage (no map of the family), source (optimizer state that
/// the job would carry, an adapter that cannot be merged).
/// The adapter in reshard.json.
Json adapter_record(Checkpoint const& source, LowRankPairs const& pairs);
void merge_adapter(Checkpoint const& source, PlanRequest const& request, SourceModel& read);

}  // namespace reshard
