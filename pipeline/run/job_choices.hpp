#pragma once

#include <cstddef>

#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// Ranks send each other what they have read.
bool is_exchanging(JobSpec const& spec, int ranks);
/// Ranks write through libhdf5 and MPI-IO, where they wait for each other.
bool is_by_library(JobSpec const& spec);
/// Staging memory that a round may count on wherever it is carried out.
std::uint64_t round_memory(JobSpec const& spec);

/// Threads of each stage of this rank: run.threads, or what the rank has of the cores of its host.
/// Collective.
std::size_t threads_of(JobSpec const& spec, Comm const& comm);

/// Errors of kind usage: choices of a job that cannot be carried out together.
void check_choices(JobSpec const& spec, int ranks);
/// The same, for the files that the plan has.
void check_files(JobSpec const& spec, JobPlan const& plan);

}  // namespace reshard
