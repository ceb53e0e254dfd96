#pragma once

#include <string>

#include "core/base/error.hpp"
#include "stages/plan/config/found_prefix.hpp"
#include "stages/plan/source/source_model.hpp"

namespace reshard {

/// As read_source_model(). If the file with the args is missing, the Error says so, instead of
/// reporting missing args.
SourceModel read_described(Checkpoint const& source, PlanRequest const& request, bool carry_states);

/// Whether nothing in the job needs more than names of a source that its map does not describe.
bool may_keep_names(Checkpoint const& source, PlanRequest const& request);

/// The warning of such a job, which keeps names without being asked to.
std::string carried_note(Error const& unknown_form);

/// The request with the prefix that was found.
PlanRequest behind_prefix(FoundPrefix const& found, PlanRequest request);

}  // namespace reshard
