#include "pipeline/nightly/nightly_after.hpp"

#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "core/base/text/wire.hpp"
#include "core/base/threads/activity.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/transport/monitor/heartbeat.hpp"
#include "pipeline/nightly/after_memory.hpp"
#include "pipeline/nightly/shell_command.hpp"
#include "stages/write/leftovers.hpp"
#include "stages/write/target_lock.hpp"

namespace reshard {

static constexpr auto wire_fields(AfterReport const&) {
  return std::tuple(&AfterReport::code, &AfterReport::error, &AfterReport::warning,
                    &AfterReport::seconds, &AfterReport::is_repeated);
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view wire_name = "what came of nightly.after";
constexpr std::chrono::milliseconds nap{10};

ShellCommand command_for(JobSpec const& job, NightlyTask const& task) {
  std::string const& target = task.job.target.path;
  return {.text = job.nightly.after,
          .argument = target,
          .environment = {{"RESHARD_TARGET", target},
                          {"RESHARD_SOURCE", task.job.source.path},
                          {"RESHARD_RECORD", (fs::path(target) / manifest_name).string()}},
          .limit_seconds = job.nightly.after_seconds};
}

std::string how_it_ended(JobSpec const& job, ShellEnd const& end) {
  if (end.out_of_time)
    return fmt::format("took longer than nightly.after_seconds = {} and was ended",
                       job.nightly.after_seconds);
  if (end.signal != 0) return fmt::format("was ended by signal {}", end.signal);
  return fmt::format("ended with exit code {}", end.exit_code);
}

/// The meaning of a command's end for the job.
AfterReport report_of(JobSpec const& job, std::string const& target, ShellEnd const& end) {
  AfterReport report;
  report.seconds = end.seconds;
  if (end.succeeded()) return report;
  report.code = end.stopped ? exit_code(ErrorKind::interrupted) : after_failed_code;
  report.error = fmt::format(
      "{}: is complete, but nightly.after = {} {}{}. {}", target, json_quoted(job.nightly.after),
      how_it_ended(job, end), end.stopped ? " after this job was told to stop" : "",
      end.stopped
          ? "Run the same command again: it repeats only that command."
          : "Look at what it wrote to stderr and correct it. The next night runs it again.");
  return report;
}

AfterReport interrupted_before(std::string const& target) {
  return {
      .code = exit_code(ErrorKind::interrupted),
      .error = fmt::format("{}: is complete; a signal stopped this job before nightly.after was "
                           "run for it. Run the same command again.",
                           target),
      .warning = {}};
}

/// The work of rank 0, in steps.
class AfterRun {
 public:
  AfterRun(JobSpec const& job, NightlyTask const& task, AfterCause cause,
           std::atomic<bool> const* stop)
      : job_(job), task_(task), target_(task.job.target.path), cause_(cause), stop_(stop) {}

  /// Whether there is a report.
  bool step() {
    if (!lock_) return !begin();
    if (!command_->has_ended(is_stopped())) return false;
    report_ = report_of(job_, target_, command_->end());
    if (report_.succeeded()) remember();
    return true;
  }

  void fail_with(Error const& error) {
    report_ = {.code = exit_code(error.kind()), .error = error.sentence(), .warning = {}};
  }
  AfterReport const& report() const { return report_; }

 private:
  bool is_stopped() const { return stop_ != nullptr && *stop_; }

  /// False when there is nothing to run.
  bool begin() {
    if (is_stopped()) {
      report_ = interrupted_before(target_);
      return false;
    }
    lock_.emplace(target_, make_token());  // no other job may run it, write or remove the target
    if (!fs::is_directory(target_))
      fail(ErrorKind::target,
           "{}: disappeared before nightly.after was run for it. Run the same command again.",
           target_);
    report_.is_repeated = !cause_.just_made && after_has_succeeded(target_);
    if (!report_.is_repeated) command_.emplace(command_for(job_, task_));
    return command_.has_value();
  }

  void remember() {
    if (auto const error = capture([&] { remember_after(target_); }))
      report_.warning =
          error->sentence() + " nightly.after has succeeded, and the next night will run it again.";
  }

  JobSpec const& job_;
  NightlyTask const& task_;
  std::string const& target_;
  AfterCause cause_;
  std::atomic<bool> const* stop_;
  std::optional<TargetLock> lock_;
  std::optional<RunningCommand> command_;
  AfterReport report_;
};

}  // namespace

AfterReport run_after(JobSpec const& job, NightlyTask const& task, AfterCause cause,
                      std::atomic<bool> const* stop, Comm const& comm) {
  Heartbeat const heartbeat(comm, job.run.stall_seconds);
  begin_phase("nightly.after");
  std::optional<AfterRun> run;
  if (comm.rank() == 0) run.emplace(job, task, cause, stop);
  // Ranks that only wait leave their cores to the command.
  together_step_by_step(comm, job.run.stall_seconds, [&] {
    if (!run) return true;
    bool done = true;
    if (auto const error = capture([&] { done = run->step(); })) run->fail_with(*error);
    if (done) return true;
    Waiting const waiting;  // that is no stall, however long the command takes
    std::this_thread::sleep_for(nap);
    return false;
  });
  std::string packed;
  if (run) packed = WireWriter().put(run->report()).bytes();
  run.reset();  // gives the lock back
  packed = comm.broadcast(std::move(packed), 0);
  return WireReader(packed, wire_name).all<AfterReport>();
}

Json after_json(AfterReport const& report) {
  Json json;
  json.set("state", report.succeeded() ? "succeeded" : "failed")
      .set("exit_code", report.code)
      .set("seconds", report.seconds);
  return report.error.empty() ? json : json.set("error", valid_utf8(report.error));
}

std::string after_text(AfterReport const& report, NightlyTask const& task) {
  std::string const how = !report.succeeded() ? "failed"
                          : report.is_repeated
                              ? "has succeeded in another job"
                              : fmt::format("succeeded in {:.1f} s", report.seconds);
  return fmt::format("after             {}: nightly.after {}\n", task.job.target.path, how);
}

}  // namespace reshard
