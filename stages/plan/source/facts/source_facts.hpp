#pragma once

#include "core/formats/format.hpp"
#include "core/formats/source_model.hpp"

namespace reshard {

/// Reads the facts that a source and its job have about the model before a map is chosen: the
/// stored names, args, config.json and the files beside it, the reference, forms that names tell.
/// Errors: source (an adapter alone, no fact about how large the model is), usage (a source that
/// needs source.config).
void read_facts(Checkpoint const& source, PlanRequest const& request, SourceModel& result);

/// Whether a family's config.json decides about the model's axes.
bool to_huggingface(PlanRequest const& request);

}  // namespace reshard
