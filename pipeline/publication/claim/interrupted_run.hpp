#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/base/text/json.hpp"
#include "pipeline/publication/claim/usable_leftovers.hpp"

namespace reshard {

/// Remains of a target after an interrupted run, and the use that `run` would make of them now.
struct InterruptedRun {
  std::filesystem::path staging;                   ///< its folder; "" where nothing was left
  EarlierTarget earlier = EarlierTarget::nothing;  ///< nothing: the next run removes the folder
  std::string why_not;          ///< why it is not resumed: "the source has changed"
  std::uint64_t runs = 0;       ///< that have filled it
  std::uint64_t bytes = 0;      ///< payload that is certain to be written
  std::uint64_t all_bytes = 0;  ///< payload of the target
  std::string sign_of_life;     ///< that its run may be active; "" for none
};

/// Looks for it as claim_target() and begin_target() do, and changes nothing. Collective; the
/// result is rank 0's, on the others there is none. Pre: task.plan is whole.
InterruptedRun find_interrupted_run(TargetTask const& task, bool fresh, Journaled journaled);

/// "1.0 GiB of 2.0 GiB are written in …: `run` resumes it".
std::string interrupted_text(InterruptedRun const& run);
Json interrupted_json(InterruptedRun const& run);

}  // namespace reshard
