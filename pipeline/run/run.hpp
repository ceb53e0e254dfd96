#pragma once

#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/run/report/run_report.hpp"
#include "pipeline/run/run_context.hpp"

namespace reshard {

/// Reads the headers, plans, moves the bytes and publishes the target. Collective; every rank gets
/// the same report or the same Error.
RunReport run(JobSpec const& job, RunContext const& context, Comm const& comm);

/// The same without touching data: what would be read, moved and written.
RunReport plan_only(JobSpec const& job, RunContext const& context, Comm const& comm);

}  // namespace reshard
