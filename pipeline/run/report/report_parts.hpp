#pragma once

#include "pipeline/run/planned_job.hpp"
#include "pipeline/run/report/run_report.hpp"
#include "pipeline/run/written_job.hpp"

namespace reshard {

/// The report before anything is written. Not collective.
RunReport report_of_plan(JobSpec const& spec, PlannedJob const& job, Comm const& comm);

/// How the bytes go; again when that has changed.
void set_path(RunReport& report, PathChoice const& path, RoundTerms const& terms);

/// Adds the work that was done, summed up over the ranks. Collective.
void add_written(RunReport& report, JobRun const& run, WrittenJob const& written);

}  // namespace reshard
