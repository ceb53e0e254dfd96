#include "pipeline/run/written_job.hpp"

#include <utility>

#include "core/base/range.hpp"
#include "core/base/text/text.hpp"
#include "pipeline/publication/incremental/taken_bytes.hpp"
#include "pipeline/run/guarded.hpp"
#include "pipeline/run/job_choices.hpp"
#include "pipeline/run/path/chosen_io.hpp"

namespace reshard {
namespace {

void tell_of(JobRun const& run, EarlierWork const& earlier, Plan const& plan) {
  if (run.comm.rank() == 0)
    run.progress.note(fmt::format("resuming: {} of {} were written by {} earlier {}",
                                  human_bytes(earlier.done.bytes), human_bytes(plan.target_bytes),
                                  earlier.runs, earlier.runs == 1 ? "run" : "runs"));
  run.progress.event(
      "resume", Json().set("earlier_runs", earlier.runs).set("bytes_reused", earlier.done.bytes));
}

}  // namespace

WrittenJob write_job(JobRun const& run, PlannedJob& job, SourceWatch const& watch,
                     ClaimedTarget& claimed, GpuPath* gpu, Trace* trace) {
  Comm const& comm = run.comm;
  StagedTarget& target = claimed.target;
  TargetTask const task{run.spec,     job.source, job.plan,   job.identity,
                        job.previous, comm,       job.threads};
  WrittenJob written;
  written.io = choose_io(run, job, target.folder());
  BegunTarget begun = begin_target(task, claimed, written.io.write);
  RoundNumbers numbers{.lockstep = is_exchanging(run.spec, comm.size()), .kept = {}};
  if (begun.earlier) {
    written.earlier_runs = begun.earlier->runs;
    written.bytes_reused = begun.earlier->done.bytes;
    tell_of(run, *begun.earlier, job.plan.plan);
  }
  std::vector<CellRange> done = begin_taken(task, begun);
  if (begun.earlier)
    done.insert(done.end(), begun.earlier->done.cells.begin(), begun.earlier->done.cells.end());
  if (!done.empty()) {
    numbers.kept = drop_cells(job.plan.plan, united(std::move(done)));
    together(comm, [&] { written.rounds_left = counts_of(round_terms(run.spec, job, comm)); });
  }
  together(comm, [&] { numbers.parts = parts_of(round_terms(run.spec, job, comm)); });
  TargetRounds rounds(task, target, begun, std::move(numbers), trace);
  end_together(comm, [&] {
    guarded(target, watch, comm,
            {ErrorKind::interrupted, ErrorKind::resources, ErrorKind::io, ErrorKind::stall}, [&] {
              written.streamed = stream_job(run, job, watch, {task, begun, rounds}, gpu, trace);
            });
    guarded(target, watch, comm, {ErrorKind::interrupted, ErrorKind::resources}, [&] {
      written.committed = commit_job(run, job, watch, {task, claimed, begun, rounds},
                                     std::move(written.streamed.digests));
    });
  });
  written.read_fallback = job.source_io->fallback();
  written.write_fallback = rounds.files().io().fallback();
  return written;
}

WrittenJob only_publish(JobRun const& run, PlannedJob const& job, SourceWatch const& watch,
                        ClaimedTarget& claimed) {
  WrittenJob written;
  written.earlier_runs = 1;  // the last of them did the rest
  written.bytes_reused = target_file_bytes(job.plan);
  guarded(claimed.target, watch, run.comm, {},
          [&] { written.committed = publish_only(run, job, claimed); });
  return written;
}

}  // namespace reshard
