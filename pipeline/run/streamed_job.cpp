#include "pipeline/run/streamed_job.hpp"

#include <atomic>
#include <memory>

#include "core/base/capture.hpp"
#include "core/base/threads/activity.hpp"
#include "core/io/file_set.hpp"
#include "core/plan/cells/cell_cuts.hpp"
#include "core/plan/cells/hand_out.hpp"
#include "pipeline/run/checks/suspicious_parts.hpp"
#include "pipeline/run/job_choices.hpp"
#include "pipeline/run/path/opened_path.hpp"
#include "stages/write/extent_writer.hpp"
#include "stages/write/hdf5_sink.hpp"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

/// Lets the journal know of a failed write-back at once: where ranks exchange, an error ends the
/// process.
class JournaledWriter : public ExtentWriter {
 public:
  JournaledWriter(WriteObserver const& observer, TargetRounds& rounds, FileSet& sources,
                  std::size_t threads)
      : ExtentWriter(rounds.files(), observer, rounds.edges(), threads,
                     {&sources, [&rounds](CloneExtent const& extent,
                                          bool copied) { rounds.add_unread(extent, copied); }},
                     rounds.unchanged()),
        rounds_(rounds) {}

  void take(RoundWork const& round, std::byte* staging) override {
    auto const error = capture([&] { ExtentWriter::take(round, staging); });
    if (!error) return;
    rounds_.distrust_lost_writes();
    throw *error;
  }

 private:
  TargetRounds const& rounds_;
};

std::unique_ptr<ExtentSink> open_sink(JobRun const& run, StreamTarget const& target,
                                      WriteObserver const& observer, FileSet& sources,
                                      std::size_t threads) {
  if (!is_by_library(run.spec))
    return std::make_unique<JournaledWriter>(observer, target.rounds, sources, threads);
  auto const transfer = run.spec.target.options.hdf5.io == hdf5::TargetIo::collective
                            ? hdf5::Transfer::collective
                            : hdf5::Transfer::independent;
  return std::make_unique<Hdf5Sink>(run.comm, paths_of(target.begun.layouts), transfer, observer,
                                    run.spec.run.stall_seconds);
}

/// Options that do not depend on where the bytes are while they stream.
StreamOptions stream_options(JobRun const& run, PlannedJob const& job, RoundTerms const& terms) {
  StreamOptions options;
  options.memory_bytes = arena_bytes(terms);
  options.threads = job.threads;
  options.stall_timeout_seconds = run.spec.run.stall_seconds;
  options.exchanging = terms.exchanging || is_by_library(run.spec);
  // Where libhdf5 writes, MPI belongs to the thread that does so: no words of other ranks are
  // heard meanwhile.
  options.stop = is_by_library(run.spec) ? run.context.stop : &run.progress.stop();
  options.views = job.plan.source.views;
  RESHARD_EXPECT(options.views.empty() || job.plan.source.real_files() == job.source.files.size());
  return options;
}

/// This rank's part of a job.
struct OwnWork {
  RoundTerms const& terms;
  RankParts const& parts;
  HandOut& hand_out;
};

StreamStats stream_own(JobRun const& run, StreamOptions options, OwnWork const& work,
                       FileSet& sources, ExtentSink& sink) {
  if (work.terms.exchanging) return stream(run.comm, options, sources, sink, rounds_of(work.terms));
  PartRounds rounds(work.terms, work.parts, work.hand_out);
  if (!work.parts.are_whole()) options.claims_next = [&] { return rounds.is_between_parts(); };
  return stream(run.comm, options, sources, sink, [&] { return rounds.next(); });
}

/// Streams, and tells how far it is. A rank that stops because another one has failed leaves the
/// word to that one.
StreamStats stream_shown(JobRun const& run, StreamOptions const& options, OwnWork const& work,
                         FileSet& sources, ExtentSink& sink,
                         std::atomic<std::uint64_t> const& streamed_bytes) {
  StreamStats stats;
  begin_phase("copying");
  run.progress.begin(run.comm, "copy", work.hand_out.planned_bytes(), StageTotal::of_this_rank);
  auto const failure = capture([&] { stats = stream_own(run, options, work, sources, sink); });
  run.progress.expect(work.hand_out.planned_bytes());
  run.progress.end(streamed_bytes, failure && failure->kind() != ErrorKind::interrupted);
  together(run.comm, [&] {
    bool const only_for_another =
        failure && failure->kind() == ErrorKind::interrupted && run.progress.stopped_by_failure();
    if (failure && !only_for_another) throw *failure;
  });
  return stats;
}

}  // namespace

StreamedJob stream_job(JobRun const& run, PlannedJob const& job, SourceWatch const& watch,
                       StreamTarget const& target, GpuPath* gpu, Trace* trace) {
  Clock::time_point const start = Clock::now();
  RoundTerms const terms = round_terms(run.spec, job, run.comm);
  FileSet& sources = *job.sources;
  watch.look_at(sources);
  StreamedJob streamed;
  streamed.digests.assign(job.plan.plan.tensor_bytes.size(), 0);
  std::atomic<std::uint64_t> streamed_bytes = 0;
  StreamOptions options = stream_options(run, job, terms);
  RankParts const& rank_parts = target.rounds.parts();
  HandOut hand_out(terms.plan, rank_parts, run.comm.rank(), target.rounds.claims());
  if (!is_by_library(run.spec))
    options.watch = [&] {
      run.progress.expect(hand_out.planned_bytes());
      run.progress.look(streamed_bytes);
    };
  options.digests = streamed.digests;
  RecordSums const record_sums(job.source.records);
  if (run.spec.source.verify != SourceVerify::off) options.records = &record_sums;
  StateSums const states(job.plan.plan, *job.plan.model, job.plan.source.files);
  if (!states.empty()) options.states = &states;
  std::unique_ptr<PartSums> const parts = part_sums_of(job);
  options.parts = parts.get();
  options.finished = [&](FinishedRound const& round) {
    target.rounds.note(round);
    streamed_bytes += target_bytes_of(job.plan.plan, round.cells);
  };
  options.trace = trace;
  if (gpu != nullptr) options.on_device = gpu->setup(device_arena_bytes(run.spec, terms));
  WriteObserver const observer = [&](std::uint32_t file, std::uint64_t offset_bytes,
                                     std::span<std::byte const> bytes) {
    target.rounds.observe(file, offset_bytes, bytes);
  };
  std::unique_ptr<ExtentSink> const sink = open_sink(run, target, observer, sources, job.threads);
  streamed.stats =
      stream_shown(run, options, {terms, rank_parts, hand_out}, sources, *sink, streamed_bytes);
  if (PartFiles* const claims = target.rounds.claims()) claims->remove();
  streamed.cells_of_others = hand_out.cells_of_others();
  streamed.bytes_of_others = hand_out.bytes_of_others();
  sink->close();
  sources.close();
  if (is_by_library(run.spec)) sync_everywhere(target.begun.layouts, run.comm);
  streamed.suspicious = suspicious_parts(job, parts.get(), run.context.library, run.comm);
  streamed.write_mode = sink->mode_name();
  streamed.seconds = seconds_since(start);
  return streamed;
}

}  // namespace reshard
