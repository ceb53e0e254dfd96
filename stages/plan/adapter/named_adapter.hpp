#pragma once

#include "core/formats/format.hpp"
#include "core/formats/targets/target_job.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// Merges the adapter of a model that peft has wrapped (JoinedCheckpoints::adapter) into weights
/// that keep their names, without a map; does nothing where there is none. `job` has model and
/// source. Errors of kind source: what cannot be merged, or not without a map.
void merge_named_adapter(Checkpoint const& source, PlanRequest const& request, JobPlan& job);

/// An Error of kind usage where a job would take the names of a model that peft has wrapped for
/// those of a model. `named`: names are kept in the job.
void check_wrapped(Checkpoint const& source, PlanRequest const& request, bool named);

}  // namespace reshard
