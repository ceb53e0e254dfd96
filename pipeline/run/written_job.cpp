#include "pipeline/run/written_job.hpp"

#include <utility>

#include "core/base/activity.hpp"
#include "core/base/text.hpp"
#include "pipeline/run/guarded.hpp"
#include "pipeline/run/job_choices.hpp"
#include "pipeline/target/source_manifest.hpp"
#include "pipeline/target/source_records.hpp"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

/// Tells of earlier runs, and takes what they did out of the plan. Returns the numbers in the whole
/// plan of the cells that are left.
std::vector<std::uint32_t> go_on_after(JobRun const& run, EarlierWork const& earlier, Plan& plan) {
  if (run.comm.rank() == 0)
    run.progress.note(fmt::format("going on with {} of {} that {} earlier {} wrote",
                                  human_bytes(earlier.done.bytes), human_bytes(plan.target_bytes),
                                  earlier.runs, earlier.runs == 1 ? "run" : "runs"));
  run.progress.event(
      "resume", Json().set("earlier_runs", earlier.runs).set("bytes_reused", earlier.done.bytes));
  return drop_cells(plan, earlier.done.cells);
}

/// What the phases after the last round need of those before.
struct Commit {
  JobRun const& run;
  PlannedJob const& job;
  TargetTask const& task;
  ClaimedTarget& claimed;
  BegunTarget& begun;
};

/// Completes the files, and looks whether what was read was the source.
CompletedTarget complete(Commit const& commit, TargetRounds& rounds, SourceWatch const& watch,
                         WrittenJob& written) {
  Comm const& comm = commit.run.comm;
  PlannedJob const& job = commit.job;
  begin_phase("completing the target's files");
  CompletedTarget completed = complete_target(commit.task, commit.claimed.target, commit.begun,
                                              rounds, std::move(written.streamed.digests));
  together(comm, [&] {
    watch.look_again(comm);
    if (job.manifest)
      written.digests_compared =
          check_source_digests(*job.manifest, job.source, job.plan, completed.digests);
  });
  written.records_compared =
      check_source_records(job.source, job.plan.source, commit.begun.sums.account(), comm);
  return completed;
}

/// Reads the target back and seals it.
VerifiedTarget verify(Commit const& commit, CompletedTarget const& completed) {
  JobRun const& run = commit.run;
  begin_phase("reading the target back");
  run.progress.begin(
      run.comm, "verify",
      run.spec.run.verify == VerifyChoice::written ? target_file_bytes(commit.job.plan) : 0,
      StageTotal::of_all_ranks);
  std::uint64_t read_back = 0;
  VerifiedTarget verified;
  auto const failure = capture([&] {
    verified = verify_target(commit.task, commit.claimed, commit.begun, completed,
                             [&](std::uint64_t bytes) {
                               read_back = bytes;
                               run.progress.look(bytes);
                               check_stop(run, "while the target was read back");
                             });
    seal_target(commit.task, commit.claimed, completed);
  });
  run.progress.end(read_back, false);
  if (failure) throw *failure;
  together(run.comm, [&] { check_stop(run, "after all was written"); });
  return verified;
}

void publish(Comm const& comm, StagedTarget& target, WrittenJob& written) {
  std::string left_behind = target.publish(comm);
  if (!left_behind.empty()) written.warnings.push_back(std::move(left_behind));
}

/// All that comes after the last round.
void commit_job(Commit const& commit, TargetRounds& rounds, SourceWatch const& watch,
                WrittenJob& written) {
  Clock::time_point const start = Clock::now();
  CompletedTarget const completed = complete(commit, rounds, watch, written);
  Clock::time_point const checking = Clock::now();
  written.verified = verify(commit, completed);
  written.verify_seconds = seconds_since(checking);
  begin_phase("publishing");
  publish(commit.run.comm, commit.claimed.target, written);
  written.commit_seconds = seconds_since(start) - written.verify_seconds;
}

}  // namespace

WrittenJob write_job(JobRun const& run, PlannedJob& job, SourceWatch const& watch,
                     ClaimedTarget& claimed, GpuPath* gpu, Trace* trace) {
  Comm const& comm = run.comm;
  StagedTarget& target = claimed.target;
  TargetTask const task{run.spec, job.source, job.plan, job.identity, comm};
  WrittenJob written;
  BegunTarget begun = begin_target(task, claimed);
  RoundNumbers numbers{.lockstep = is_exchanging(run.spec, comm.size()), .kept = {}};
  if (begun.earlier) {
    written.earlier_runs = begun.earlier->runs;
    written.bytes_reused = begun.earlier->done.bytes;
    numbers.kept = go_on_after(run, *begun.earlier, job.plan.plan);
    together(comm, [&] { written.rounds_left = counts_of(round_terms(run.spec, job, comm)); });
  }
  TargetRounds rounds(task, target, begun, std::move(numbers));
  end_together(comm, [&] {
    guarded(target, watch, comm,
            {ErrorKind::interrupted, ErrorKind::resources, ErrorKind::io, ErrorKind::stall}, [&] {
              written.streamed = stream_job(run, job, watch, {task, begun, rounds}, gpu, trace);
            });
    guarded(target, watch, comm, {ErrorKind::interrupted, ErrorKind::resources}, [&] {
      commit_job({run, job, task, claimed, begun}, rounds, watch, written);
    });
  });
  written.read_fallback = job.source_io->fallback();
  written.write_fallback = rounds.files().io().fallback();
  return written;
}

WrittenJob only_publish(JobRun const& run, PlannedJob const& job, SourceWatch const& watch,
                        ClaimedTarget& claimed) {
  WrittenJob written;
  guarded(claimed.target, watch, run.comm, {}, [&] {
    Clock::time_point const start = Clock::now();
    if (run.comm.rank() == 0)
      run.progress.note(
          "an earlier run wrote and verified all of the target: it only gets its name now");
    together(run.comm, [&] { check_stop(run, "before the target got its name"); });
    written.earlier_runs = 1;  // the last of them did the rest
    written.bytes_reused = target_file_bytes(job.plan);
    written.verified.total = claimed.total;
    publish(run.comm, claimed.target, written);
    written.commit_seconds = seconds_since(start);
  });
  return written;
}

}  // namespace reshard
