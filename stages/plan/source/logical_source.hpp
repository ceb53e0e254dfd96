#pragma once

#include "stages/plan/source/source_model.hpp"

namespace reshard {

/// Reads the facts of a container with logical names: config, args, whose layer norms. Errors of
/// kind source where there are none.
void read_logical_facts(Checkpoint const& checkpoint, SourceModel& result);

/// Adds the catalogue of such a container to its model, which is made: which tensors the model has
/// is what is there. Errors of kind source: tensors that the map does not know, other shapes or
/// axes than the model's, tensors that the family requires and that are missing.
SourceModel with_logical_catalogue(SourceModel model, Checkpoint const& checkpoint);

}  // namespace reshard
