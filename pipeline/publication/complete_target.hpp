#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/formats/manifest/manifest.hpp"
#include "pipeline/publication/incremental/reuse_files.hpp"
#include "pipeline/publication/target_rounds.hpp"

namespace reshard {

/// A target whose files are all written and synced.
struct CompletedTarget {
  std::vector<std::uint64_t> digests;   ///< of the source, by tensor of the plan; empty: not taken
  std::vector<FileRecord> small_files;  ///< on rank 0: as they were to be written
  /// All bytes that the plan leaves unread were cloned by this run: the target shares them with the
  /// source.
  bool shares_unread = false;
  /// On rank 0, once it is verified: the XXH3 of its manifest, which an unverified one has not.
  std::optional<std::uint64_t> manifest = {};
  ReusedBytes reused;  ///< where a previous target can be taken over
};

/// After the last round: adds up what all ranks and earlier runs have done, completes and syncs
/// every file, and writes those without tensors. An Error of kind self_check when what was done is
/// not the plan, each part once. `digests` are this rank's. Collective.
CompletedTarget complete_target(TargetTask const& task, StagedTarget const& target,
                                BegunTarget& begun, TargetRounds& rounds,
                                std::vector<std::uint64_t> digests);

}  // namespace reshard
