#pragma once

#include <cstdint>

#include "pipeline/run/checks/source_watch.hpp"
#include "pipeline/run/planned_job.hpp"
#include "stages/verify/rows_behind.hpp"

namespace reshard {

/// Compares what the source holds more than once with what of it is read, where the job asks for
/// that. Returns how many replicas were compared. Error: source. Collective.
std::uint64_t compare_replicas(JobSpec const& spec, PlannedJob const& job, SourceWatch const& watch,
                               Comm const& comm);

/// Looks at the rows of the vocabulary that the job leaves out. Collective.
RowsBehind look_at_padding_left_out(PlannedJob const& job, SourceWatch const& watch,
                                    Comm const& comm);

}  // namespace reshard
