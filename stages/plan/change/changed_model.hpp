#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/formats/source_model.hpp"
#include "core/formats/targets/target.hpp"

namespace reshard {

/// Makes the model that PlanRequest::changes ask for of the one that was read: other sizes of its
/// axes, its pieces cut and renumbered, its config and args restated. The facts are asked again
/// what each layer is, and must say of those that are left what they said before. Does nothing
/// where no change is asked for. Once, after all that replaces weights by others.
///
/// Errors of kind usage: lists and sizes that do not fit; optimizer state, an adapter; a config
/// that cannot say it; a tokenizer with larger ids than the target's vocabulary.
void change_model(Checkpoint const& source, PlanRequest const& request, SourceModel& read);

}  // namespace reshard
