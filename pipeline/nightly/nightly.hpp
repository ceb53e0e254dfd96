#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"

namespace reshard {

/// A checkpoint that is newer than the chosen one, with nightly.backfill also an older one, and why
/// it was passed over; or the tracker, and why it could not be followed.
struct NightlySkip {
  std::string name;
  std::string reason;
};

/// A task of one night.
struct NightlyTask {
  enum class Action {
    convert,     ///< `job` is to be run
    up_to_date,  ///< the target of the newest complete checkpoint is there and was made from it by
                 ///< this job
    waiting,     ///< a checkpoint that was converted is being written again, or the tracker is
    nothing_complete,
  };
  Action action = Action::nothing_complete;
  std::string name;        ///< of the checkpoint and its target; "" when none was chosen
  JobSpec job;             ///< for this checkpoint, without [nightly]
  Json source_record;      ///< what the target's manifest shall remember of the source
  bool after_due = false;  ///< up_to_date: nightly.after has not yet succeeded for the target
  std::vector<NightlySkip> skipped;
  std::vector<std::string> warnings;
  /// With nightly.backfill: the older checkpoints that have something to do, newest first:
  /// `convert`, or `up_to_date` with `after_due`.
  std::vector<NightlyTask> older;
};

/// Looks at the folder source.path for its newest complete checkpoint, and at that one's target.
/// Collective; the same on every rank. Errors: usage (verify = "off", source.path is a checkpoint
/// itself), source (source.path is not a folder), target (the target's name is taken by something
/// that no nightly job of this target.format made from this checkpoint, and target.replace is not
/// set).
NightlyTask find_nightly_task(JobSpec const& job, Comm const& comm);

/// Whether the target of a task's job is now what it would make: another job has just made it.
/// Collective.
bool is_up_to_date(JobSpec const& job, Comm const& comm);

/// The removal of surplus targets.
struct NightlyRemoval {
  std::vector<std::string> removed;   ///< surplus targets
  std::vector<std::string> cleaned;   ///< staging folders or journals of interrupted nights that no
                                      ///< nightly run would resume
  std::vector<std::string> warnings;  ///< what could not be removed, or was left there by others
};

/// Removes all converted checkpoints but the newest nightly.keep; those as new as the task's stay,
/// and all when none was chosen. Only folders count that a nightly job made from a checkpoint of
/// their name in source.path, and that hold nothing else. Then what interrupted nights left of
/// older checkpoints, but for those that a later night will resume: `awaited` has their names.
/// Collective; never an Error.
NightlyRemoval remove_surplus(JobSpec const& job, NightlyTask const& task,
                              std::set<std::string> const& awaited, Comm const& comm);

/// The names of the targets that count for nightly.keep, the newest first. Collective; never an
/// Error.
std::vector<std::string> standing_targets(JobSpec const& job, Comm const& comm);

/// One line without a newline: why there is nothing to do; "" for a task that converts.
std::string nightly_line(JobSpec const& job, NightlyTask const& task);
/// {"action", "source", "target"} of one task; `planned`: a conversion was only planned.
Json task_json(NightlyTask const& task, bool planned);
/// The same with {"skipped": [{"name", "reason"}], "removed", "cleaned"}.
Json nightly_json(NightlyTask const& task, NightlyRemoval const& removal, bool planned);

}  // namespace reshard
