#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/formats/source_model.hpp"
#include "core/formats/targets/target.hpp"

namespace reshard {

/// Where target.vocab_size is set, compares the tokenizer files that the target gets with it: an
/// Error of kind usage where one has a larger id, a warning where there are none.
void check_tokenizer(Checkpoint const& source, PlanRequest const& request, SourceModel& read);

}  // namespace reshard
