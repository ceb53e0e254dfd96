#pragma once

#include <string>
#include <vector>

#include "stages/plan/job_plan.hpp"
#include "stages/plan/source/dist_source.hpp"

namespace reshard {

/// Whether optimizer and random-generator state go from this source into such a target.
bool carries_state(SourceCheckpoint const& source, TargetRequest const& request);

/// State in the source that the target cannot hold ends the job with an Error of kind source,
/// unless the request says to drop it: then a warning says so. Nothing but headers is read.
void check_state(SourceCheckpoint const& source, TargetRequest const& request,
                 std::vector<std::string>& warnings);

/// Objects of one rank's random generators or fault detection in a DCP checkpoint.
bool is_run_state(std::string_view key);

}  // namespace reshard
