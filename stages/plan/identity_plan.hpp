#pragma once

#include "stages/plan/job_plan.hpp"

namespace reshard {

/// Whether a job keeps every name and needs no model: stated by map = "none", or plain DCP on one
/// side and no map named.
bool keeps_names(Checkpoint const& source, PlanRequest const& request);

/// The plan of such a job: stored tensors are what they are, only their boxes and files change.
/// Errors: usage (a target format that needs names of its own), source (holes, overlaps, state that
/// the target cannot hold). `tensors_read` as in make_job_plan().
JobPlan make_identity_plan(
    Checkpoint const& source, PlanRequest const& request, PlanLimits const& limits,
    std::function<void()> const& tensors_read = [] {});

/// The source's side of it, for listings, of the keys that begin with PlanRequest::source_prefix.
JobPlan identity_catalogue(Checkpoint const& source, PlanRequest const& request);

}  // namespace reshard
