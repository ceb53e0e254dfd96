#pragma once

#include <atomic>
#include <string>

#include "core/base/text/json.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/nightly/nightly.hpp"

namespace reshard {

/// The exit code when the target is complete and nightly.after has failed. No ErrorKind has it.
inline constexpr int after_failed_code = 9;

/// The end of nightly.after for one target.
struct AfterReport {
  int code = 0;         ///< 0: it has succeeded; else the exit code for this job
  std::string error;    ///< why not, as a sentence
  std::string warning;  ///< it has succeeded, and that cannot be remembered
  double seconds = 0;
  bool is_repeated = false;  ///< another job has run it meanwhile, so this one did not

  bool succeeded() const { return code == 0; }
};

/// The reason to run a target's command: it is run once the target is published, and again where it
/// has not yet succeeded.
struct AfterCause {
  bool just_made = false;  ///< by this job: what is remembered is of an earlier target
};

/// Runs nightly.after for the target of a task on rank 0, under the target's lock, and remembers
/// its success. The other ranks wait; no time limit of run.stall_seconds holds for the command.
/// Collective; the same on every rank, never an Error.
AfterReport run_after(JobSpec const& job, NightlyTask const& task, AfterCause cause,
                      std::atomic<bool> const* stop, Comm const& comm);

/// {"state": "succeeded" or "failed", "exit_code", "seconds", "error"}
Json after_json(AfterReport const& report);
/// One line with a newline.
std::string after_text(AfterReport const& report, NightlyTask const& task);

}  // namespace reshard
