#pragma once

#include <filesystem>
#include <vector>

#include "pipeline/job_spec.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {

/// What the keys of a job ask of its target, for the planner. Errors of kind usage: a mesh or placements that cannot be read.
TargetRequest target_request(JobSpec const& job, std::vector<std::filesystem::path> const& map_folders);

/// What the reader looks for.
SourceFormat source_format(CheckpointFormat format);

}  // namespace reshard
