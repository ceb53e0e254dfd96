#pragma once

#include "pipeline/run/planned_job.hpp"
#include "pipeline/run/report/run_report.hpp"
#include "pipeline/run/written_job.hpp"

namespace reshard {

/// Sets all figures that are known before anything is written. Not collective.
void set_planned(Figures& figures, JobSpec const& spec, PlannedJob const& job);

/// Sets all figures of what was done, joined over the ranks as the table says. Collective.
void set_written(Figures& figures, WrittenJob const& written, Comm const& comm);

/// Bytes that were read, or written, for each byte of the model that had to be; 1 is the least.
double read_amplification(RunReport const& report);
double write_amplification(RunReport const& report);

/// The phrases of a line of the readable report, in the order of the table.
std::string phrases_of(RunReport const& report, std::string_view line);

}  // namespace reshard
