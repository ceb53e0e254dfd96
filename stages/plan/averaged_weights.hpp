#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/formats/targets/target.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// Makes every floating weight of the plan's source the mean of its own values and those of its
/// counterparts in JoinedCheckpoints::averaged, and notes that in JobPlan::made_with; does nothing
/// where there are none. A counterpart has the same name, shape and box. Done after all other
/// changes of values, so that each is rounded once, and before the source's table of tensors is let
/// go. Numbers that are not floating are the source's; a warning names them. An Error of kind
/// source where a counterpart is missing or differs in its shape or boxes, or has weights beside
/// them, or a config that changes the model, and where values have no mean: optimizer state,
/// quantised weights.
void average_weights(Checkpoint const& source, PlanRequest const& request, JobPlan& job);

}  // namespace reshard
