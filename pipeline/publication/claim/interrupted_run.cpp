#include "pipeline/publication/claim/interrupted_run.hpp"

#include <chrono>

#include <sys/stat.h>
#include <unistd.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/transport/gathered_texts.hpp"
#include "pipeline/publication/begin_target.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// How a file system shows this user is known only to those who make something in it.
bool seems_own(fs::path const& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         (status.st_uid == ::geteuid() || ::geteuid() == 0);
}

std::int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

InterruptedRun look(TargetTask const& task, LeftoverTerms const& terms,
                    std::span<std::string const> boots) {
  InterruptedRun run;
  Leftovers const left = leftovers_of(task.spec.target.path);
  if (left.staging.empty()) return run;
  UsableLeftovers const usable = usable_leftovers(task, left, terms);
  run.staging = usable.earlier == EarlierTarget::nothing ? left.staging.front() : usable.staging;
  run.earlier = usable.earlier;
  run.why_not = usable.why_not;
  run.all_bytes = task.plan.plan.target_bytes;
  run.sign_of_life = sign_of_life(left, false, now_ns()).value_or("");
  if (run.earlier == EarlierTarget::whole) run.bytes = run.all_bytes;
  if (run.earlier != EarlierTarget::part) return run;
  auto const layouts = layouts_in(run.staging, task.plan);
  EarlierWork const work =
      earlier_work(JournalFolder(usable.journal), boots, sums_of(task, layouts).limits());
  run.runs = work.runs;
  run.bytes = work.done.bytes;
  return run;
}

}  // namespace

InterruptedRun find_interrupted_run(TargetTask const& task, bool fresh, Journaled journaled) {
  std::vector<std::string> const boots = gathered_texts({this_boot_id()}, task.comm);
  InterruptedRun run;
  together(task.comm, [&] {
    if (task.comm.rank() != 0) return;
    // Folders that an active run renames or removes meanwhile are not there to be resumed.
    if (capture([&] { run = look(task, {fresh, journaled, seems_own}, boots); })) run = {};
  });
  return run;
}

std::string interrupted_text(InterruptedRun const& run) {
  std::string const active =
      run.sign_of_life.empty()
          ? ""
          : fmt::format(
                " (its run may still be active: `run` is refused while that holds the target's "
                "lock, and on a file system without locks {})",
                run.sign_of_life);
  std::string const place = run.staging.string();
  switch (run.earlier) {
    case EarlierTarget::whole:
      return fmt::format("{} is complete and verified: `run` renames it{}", place, active);
    case EarlierTarget::part:
      return fmt::format("{} of {} are written in {} by {}: `run` resumes this{}",
                         human_bytes(run.bytes), human_bytes(run.all_bytes), place,
                         counted(run.runs, "earlier run"), active);
    case EarlierTarget::nothing: break;
  }
  return fmt::format("{} is not resumed: {}. `run` removes it and starts afresh{}", place,
                     run.why_not, active);
}

Json interrupted_json(InterruptedRun const& run) {
  Json json;
  json.set("folder", run.staging.string())
      .set("next_run", run.earlier == EarlierTarget::nothing ? "starts afresh"
                       : run.earlier == EarlierTarget::part  ? "resumes"
                                                             : "renames")
      .set("why_not", run.why_not);
  json.set("earlier_runs", run.runs)
      .set("bytes_written", run.bytes)
      .set("bytes", run.all_bytes)
      .set("may_be_active", run.sign_of_life);
  return json;
}

}  // namespace reshard
