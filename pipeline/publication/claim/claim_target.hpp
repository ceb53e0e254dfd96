#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/formats/checkpoint.hpp"
#include "core/formats/targets/target.hpp"
#include "pipeline/publication/claim/staged_target.hpp"
#include "pipeline/publication/claim/usable_leftovers.hpp"
#include "pipeline/publication/target_task.hpp"
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

/// How a run wants its target.
struct TargetClaim {
  DiskSpace space;
  bool fresh = false;  ///< what an earlier run left is not resumed
  Journaled journaled = Journaled::yes;
  Json source_record = {};  ///< members for the "source" of the manifest
  /// Files of the source without tensors, as they were read: the job ends if they change.
  std::map<std::filesystem::path, FileStamp> described_by = {};
};

/// A target that is this run's.
struct ClaimedTarget {
  StagedTarget target;
  EarlierTarget earlier = EarlierTarget::nothing;
  // On rank 0:
  std::string total = {};                  ///< of a whole one: the digest of the model
  Json source_record = {};                 ///< with the source's stamp
  std::vector<std::string> warnings = {};  ///< why an earlier run was not resumed, that there
                                           ///< are no locks; as sentences
};

/// Looks whether the target may be written, takes its lock, and takes over what an earlier run of
/// the same job left, or makes an empty staging folder. Collective.
ClaimedTarget claim_target(TargetTask const& task, TargetClaim const& claim);

}  // namespace reshard
