#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/publication/verify_target.hpp"
#include "pipeline/run/checks/compare_masters.hpp"
#include "pipeline/run/checks/source_watch.hpp"
#include "pipeline/run/planned_job.hpp"
#include "pipeline/run/run_context.hpp"
#include "pipeline/verify/self_check/self_check.hpp"

namespace reshard {

/// A target whose rounds are all written.
struct FilledTarget {
  TargetTask const& task;
  ClaimedTarget& claimed;
  BegunTarget& begun;
  TargetRounds& rounds;
};

/// The work on a target after its last round, on this rank.
struct CommittedJob {
  std::uint64_t digests_compared = 0;  ///< with the source's manifest
  std::uint64_t records_compared = 0;  ///< zip records of the source
  StateProof states;
  VerifiedTarget verified;
  std::optional<SelfCheckResult> self_check;  ///< with run.self_check
  std::string left_behind;  ///< what could not be removed, as a sentence; "" where nothing was left
  double verify_seconds = 0;
  double self_check_seconds = 0;
  double commit_seconds = 0;
};

/// Completes the files, looks whether what was read was the source, reads the target back, seals
/// and publishes it. `digests` are those that this rank has taken while it read. Of the plan what
/// the files are stays. Collective.
CommittedJob commit_job(JobRun const& run, PlannedJob& job, SourceWatch const& watch,
                        FilledTarget const& target, std::vector<std::uint64_t> digests);

/// Only gives the target its name: an earlier run has done the rest. Collective.
CommittedJob publish_only(JobRun const& run, PlannedJob const& job, ClaimedTarget& claimed);

}  // namespace reshard
