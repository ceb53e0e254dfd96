#pragma once

#include <optional>

#include "core/formats/checkpoint.hpp"
#include "core/formats/run/run_record.hpp"
#include "core/formats/source_model.hpp"
#include "core/formats/targets/target.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// The program that starts from a torch_dist target, and what it needs of the target.
/// Megatron-Bridge and ms-swift build models with Transformer Engine's modules: where a job asks
/// for others, what came from such a program goes on in Megatron-LM. An Error of kind usage where
/// the job names the program, too.
void settle_program(Checkpoint const& source, PlanRequest& request);

/// Adds the run_config.yaml from which Megatron-Bridge builds the model, where the target is for
/// it: that of a source of Megatron-Bridge with what differs, or one that is made. `record`: what
/// the source says of its run. Errors of kind usage as of run_config_text(), and for adapters.
void add_run_config(Checkpoint const& source, PlanRequest const& request, SourceModel const& read,
                    std::optional<RunRecord> const& record, JobPlan& job);

}  // namespace reshard
