#pragma once

#include "core/formats/format.hpp"
#include "core/formats/source_model.hpp"

namespace reshard {

/// What a source and its job say of the model before a map is chosen: the stored names, args,
/// config.json and the files beside it, the reference, what names tell. Errors: source (an adapter
/// alone, nothing that says how large the model is), usage (a source that needs source.config).
void read_facts(Checkpoint const& source, PlanRequest const& request, SourceModel& result);

/// Whether a family's config.json decides about the model's axes.
bool to_huggingface(PlanRequest const& request);

}  // namespace reshard
