#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/formats/format.hpp"
#include "core/formats/targets/target.hpp"
#include "core/formats/wrapped/wrapped_model.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "pipeline/job/job_spec.hpp"

namespace reshard {

/// The keys of a job as a request to the planner. Errors of kind usage: a mesh or placements that
/// cannot be read.
PlanRequest plan_request(JobSpec const& job, MapLibrary const& library);

/// The patterns of model.frozen: "a.*; b.*".
std::vector<std::string> frozen_patterns(JobSpec const& job);

/// How a job's source is opened: optimizer state of rank files is read where the target takes it.
OpenChoice open_choice(JobSpec const& job);
/// The parts of a wrapped model that a job takes.
WrappedChoice wrapped_choice(JobSpec const& job);

/// A request for a checkpoint's logical tensors and for no target. `map` is as in a job file;
/// `config`: config.json or its folder, where the checkpoint has none.
PlanRequest request_without_target(std::string const& map, std::filesystem::path const& config,
                                   MapLibrary const& library);

}  // namespace reshard
