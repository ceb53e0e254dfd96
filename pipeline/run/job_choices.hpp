#pragma once

#include "pipeline/job/job_spec.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// Ranks send each other what they have read.
bool is_exchanging(JobSpec const& spec, int ranks);
/// Ranks write through libhdf5 and MPI-IO, where they wait for each other.
bool is_by_library(JobSpec const& spec);
/// Staging memory that a round may count on wherever it is carried out.
std::uint64_t round_memory(JobSpec const& spec);

/// Errors of kind usage: choices of a job that cannot be carried out together.
void check_choices(JobSpec const& spec, int ranks);
/// The same, for the files that the plan has.
void check_files(JobSpec const& spec, JobPlan const& plan);

}  // namespace reshard
