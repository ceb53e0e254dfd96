#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "pipeline/publication/claim/staged_target.hpp"
#include "pipeline/publication/target_task.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {

/// The part of the target that an earlier run of the same job has made.
enum class EarlierTarget {
  nothing,
  part,
  whole,  ///< written and verified: only the target's name is missing
};

/// How a run looks at what earlier ones left.
struct LeftoverTerms {
  bool fresh = false;  ///< nothing is resumed
  Journaled journaled = Journaled::yes;
  /// Whether this is a folder, no link to one, that this user made.
  std::function<bool(std::filesystem::path const&)> is_own;
};

/// A journal and a staging folder that belong together and to this job.
struct UsableLeftovers {
  std::filesystem::path journal;
  std::filesystem::path staging;
  EarlierTarget earlier = EarlierTarget::nothing;
  std::string why_not;  ///< what stood against them, where there are none: "--fresh was given"
};

/// Those of a target that a run of this task resumes. Looks only.
UsableLeftovers usable_leftovers(TargetTask const& task, Leftovers const& left,
                                 LeftoverTerms const& terms);

}  // namespace reshard
