#pragma once

#include "core/formats/targets/target.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// Whether the job asks for quantised weights (target.quant).
bool quantises(PlanRequest const& request);

/// Refuses a source that is quantised already, in a job that does not dequantise it, and keys
/// beside target.quant without it (usage).
void check_quantisable(Checkpoint const& source, PlanRequest const& request);

/// Makes a job that is laid out, up to its plan, one whose weights are quantised, where it asks for
/// that. Its logical
/// tensors are then those that the target stores, and the source's catalogue has a view for each:
/// gathered from wherever their elements lie, or encoded from that. The proof that the source holds
/// every element once is made here. Errors: usage (keys that do not fit, blocks that do not fit,
/// experts in one tensor), source (codes in the source; missing elements).
void quantise(JobPlan& job, PlanRequest const& request, Checkpoint const& source);

}  // namespace reshard
