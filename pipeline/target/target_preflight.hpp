#pragma once

#include <cstdint>

#include "core/formats/checkpoint.hpp"
#include "core/formats/target.hpp"
#include "pipeline/job/job_spec.hpp"
#include "stages/write/target_place.hpp"

namespace reshard {

/// Where a target goes, bytes.
struct DiskSpace {
  std::uint64_t needed_bytes = 0;
  std::uint64_t free_bytes = 0;
};

ExistingTarget existing_target(JobSpec const& spec);

/// Writes nothing, on one rank. Error of kind usage when source and target are not apart, of kind
/// target when target.replace would remove what is not a checkpoint, of kind resources when the
/// disk has no room. `draft` is the target to be.
void check_target(JobSpec const& spec, Checkpoint const& source, TargetDraft const& draft,
                  DiskSpace const& space);

}  // namespace reshard
