#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "pipeline/publication/complete_target.hpp"

namespace reshard {

/// The result of the check of a target.
struct VerifiedTarget {
  std::uint64_t bytes_read = 0;   ///< back from it, by all ranks
  std::uint64_t bytes_early = 0;  ///< of these, of files that were begun while others were written
  std::string total;              ///< the digest of the model; "" where none was taken
  std::uint64_t bytes_shared =
      0;                        ///< not read back: cloned from a source whose digests are recorded
  ReusedBytes reused;           ///< from the previous target
  std::string oldest_verified;  ///< when the one of its files was read back that was read back
                                ///< first; "" where all were now
  // Against the previous target, where one can be taken over:
  std::uint64_t tensors_changed = 0;         ///< in values, shape or dtype, and new ones
  std::vector<std::string> changed_tensors;  ///< the first of them
};

/// With VerifyChoice::written: compares the files, as they are on the device, with what was to be
/// written, but for what they share with the source (CompletedTarget::shares_unread). An Error of
/// kind self_check names what disagrees. Writes the manifest, unless nothing is to be verified, and
/// the files of checksums that are taken of what is read back, whose records it adds to
/// `completed`. `watch` is informed repeatedly how many bytes this rank has read back; what it
/// throws ends the comparison. `compared` is called when neither the cells of the plan nor what is
/// around tensors in files is needed any more. Collective.
VerifiedTarget verify_target(
    TargetTask const& task, ClaimedTarget const& claimed, BegunTarget& begun, TargetRounds& rounds,
    CompletedTarget& completed, std::function<void(std::uint64_t)> const& watch,
    std::function<void()> const& compared = [] {});

/// Looks that the staging folder holds nothing else, and notes in the journal that everything is
/// written and verified: the next run of the job would only give it its name. Collective.
void seal_target(TargetTask const& task, ClaimedTarget& claimed, CompletedTarget const& completed);

}  // namespace reshard
