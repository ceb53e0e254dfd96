#pragma once

#include <memory>
#include <string>

#include "core/mapping/maps/map_library.hpp"
#include "pipeline/run/planned_job.hpp"
#include "stages/stream/part_sums.hpp"

namespace reshard {

/// Sums of the layers and experts that a job reads; null where it takes no digests.
std::unique_ptr<PartSums> part_sums_of(PlannedJob const& job);

/// Layers and experts with sums that a sound model does not have (suspects_in): zeros alone, and
/// equal ones. Those that this run has not read completely on the host (computed values on the GPU
/// path, cloned or written by an earlier run) are left out. A sentence; "" for nothing. Collective.
std::string suspicious_parts(PlannedJob const& job, PartSums const* sums, MapLibrary const& library,
                             Comm const& comm);

}  // namespace reshard
