#pragma once

#include <optional>
#include <vector>

#include "pipeline/journal/earlier_work.hpp"
#include "pipeline/target/claim_target.hpp"
#include "pipeline/target/target_sums.hpp"
#include "stages/write/target_files.hpp"

namespace reshard {

/// A target whose files are there at full size.
struct BegunTarget {
  std::vector<TargetLayout> layouts;  ///< with paths in the staging folder
  TargetSums sums;
  std::optional<EarlierWork> earlier;  ///< what earlier runs did; nothing when this is the first
  bool integrity = false;              ///< integrity.json is written
};

/// Makes every file of a claimed target, or goes on with those of an earlier run. Collective. Pre:
/// no earlier run has made the whole target; task.plan is whole.
BegunTarget begin_target(TargetTask const& task, ClaimedTarget const& claimed);

/// Notes in its journal which job a target is of. On rank 0.
void note_job(TargetTask const& task, ClaimedTarget const& claimed);

}  // namespace reshard
