#pragma once

#include "core/formats/format.hpp"
#include "core/formats/source_model.hpp"

namespace reshard {

/// Makes the weights that Checkpoint::adapter adapts merged ones, in the catalogue; nothing where
/// the source has no adapter. Errors: usage (no map of the family), source (optimizer state that
/// the job would carry, an adapter that cannot be merged).
void merge_adapter(Checkpoint const& source, PlanRequest const& request, SourceModel& read);

}  // namespace reshard
