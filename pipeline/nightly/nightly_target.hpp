#pragma once

#include <set>
#include <string>
#include <vector>

#include "pipeline/nightly/nightly.hpp"
#include "pipeline/nightly/nightly_choice.hpp"
#include "pipeline/records/source_stamp.hpp"

namespace reshard {

/// The thing at the name of a target.
enum class TargetState {
  absent,
  made,      ///< from this source as it is, by this job
  outdated,  ///< from this source, by a nightly job of the same target.format with other keys, or
             ///< before the source changed
  other_format,  ///< from this source, by a nightly job of another target.format
  of_run,    ///< from this source by `reshard run`, with another job or before the source changed
  extended,  ///< outdated, and others have put files into it
  foreign,   ///< anything else
};

struct FoundTarget {
  TargetState state = TargetState::absent;
  std::string detail;  ///< other_format: that format; extended: one of the files
};

/// `job` is for one checkpoint. Jobs that differ in how they run ([run], target.replace) are the
/// same.
FoundTarget find_target(JobSpec const& job, SourceStamp const& source);

/// Why a target may not be replaced unasked: an Error of kind target.
[[noreturn]] void refuse_target(JobSpec const& job, FoundTarget const& found);

/// The targets that count for nightly.keep, with the times of their sources.
std::vector<ListedFolder> counted_targets(JobSpec const& job);

/// remove_surplus() of one rank.
NightlyRemoval remove_surplus_targets(JobSpec const& job, NightlyTask const& task,
                                      std::set<std::string> const& awaited);

}  // namespace reshard
