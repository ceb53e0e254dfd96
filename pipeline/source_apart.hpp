#pragma once

#include "core/formats/checkpoint.hpp"
#include "pipeline/job_spec.hpp"

namespace reshard {

/// Links and further mounts can lead from the source into the target: replacing the target would then destroy what is read. Error of kind usage when
/// the target holds a file of the source, or lies in a folder of the source.
void check_source_apart(JobSpec const& spec, SourceCheckpoint const& source);

}  // namespace reshard
