#include "pipeline/run/committed_job.hpp"

#include <utility>

#include "core/base/activity.hpp"
#include "core/base/capture.hpp"
#include "pipeline/target/source_manifest.hpp"
#include "pipeline/target/source_records.hpp"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

/// An Error when what was read is not what the source is now, or was when it was saved.
void check_source(PlannedJob const& job, SourceWatch const& watch, FilledTarget const& target,
                  std::span<std::uint64_t const> digests, CommittedJob& committed) {
  Comm const& comm = target.task.comm;
  together(comm, [&] {
    watch.look_again(comm);
    if (job.manifest)
      committed.digests_compared =
          check_source_digests(*job.manifest, job.source, job.plan, digests);
  });
  committed.records_compared =
      check_source_records(job.source, job.plan.source, target.begun.sums.account(), comm);
}

/// Reads the target back and seals it.
VerifiedTarget verify(JobRun const& run, FilledTarget const& target, CompletedTarget& completed) {
  run.progress.begin(
      run.comm, "verify",
      run.spec.run.verify == VerifyChoice::written ? target_file_bytes(target.task.plan) : 0,
      StageTotal::of_all_ranks);
  std::uint64_t read_back = 0;
  auto const watch = [&](std::uint64_t bytes) {
    read_back = bytes;
    run.progress.look(bytes);
    check_stop(run, "while the target was read back");
  };
  VerifiedTarget verified;
  auto const failure = capture([&] {
    verified =
        verify_target(target.task, target.claimed, target.begun, target.rounds, completed, watch);
    seal_target(target.task, target.claimed, completed);
  });
  run.progress.end(read_back, false);
  if (failure) throw *failure;
  together(run.comm, [&] { check_stop(run, "after all was written"); });
  return verified;
}

}  // namespace

CommittedJob commit_job(JobRun const& run, PlannedJob const& job, SourceWatch const& watch,
                        FilledTarget const& target, std::vector<std::uint64_t> digests) {
  CommittedJob committed;
  Clock::time_point const start = Clock::now();
  begin_phase("completing the target's files");
  CompletedTarget completed = complete_target(target.task, target.claimed.target, target.begun,
                                              target.rounds, std::move(digests));
  check_source(job, watch, target, completed.digests, committed);
  committed.states = prove_states(run.spec, job, completed.digests, run.comm);
  begin_phase("reading the target back");
  Clock::time_point const checking = Clock::now();
  committed.verified = verify(run, target, completed);
  committed.verify_seconds = seconds_since(checking);
  begin_phase("publishing");
  committed.left_behind = target.claimed.target.publish(run.comm);
  committed.commit_seconds = seconds_since(start) - committed.verify_seconds;
  return committed;
}

CommittedJob publish_only(JobRun const& run, ClaimedTarget& claimed) {
  CommittedJob committed;
  Clock::time_point const start = Clock::now();
  if (run.comm.rank() == 0)
    run.progress.note(
        "an earlier run wrote and verified the complete target: it is only renamed now");
  together(run.comm, [&] { check_stop(run, "before the target was renamed"); });
  committed.verified.total = claimed.total;
  committed.left_behind = claimed.target.publish(run.comm);
  committed.commit_seconds = seconds_since(start);
  return committed;
}

}  // namespace reshard
