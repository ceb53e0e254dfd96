#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/formats/format.hpp"
#include "pipeline/job/job_spec.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// What the keys of a job ask of its target, for the planner. Errors of kind usage: a mesh or
/// placements that cannot be read.
TargetRequest target_request(JobSpec const& job,
                             std::vector<std::filesystem::path> const& map_folders);

/// The patterns of model.frozen: "a.*; b.*".
std::vector<std::string> frozen_patterns(JobSpec const& job);

/// How a job's source is opened: optimizer state of rank files is read where the target takes it.
OpenChoice open_choice(JobSpec const& job);

/// What asks the planner for a checkpoint's logical tensors and for no target. `map` is as in a job
/// file; `config`: config.json or its folder, where the checkpoint has none.
TargetRequest request_without_target(std::string const& map, std::filesystem::path const& config,
                                     std::vector<std::filesystem::path> const& map_folders);

}  // namespace reshard
