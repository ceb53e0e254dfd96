#include "pipeline/run/run.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>

#include "core/base/activity.hpp"
#include "core/base/text.hpp"
#include "core/formats/stamped_files.hpp"
#include "core/io/file_set.hpp"
#include "core/transport/heartbeat.hpp"
#include "pipeline/job/job_paths.hpp"
#include "pipeline/run/gpu_path.hpp"
#include "pipeline/run/planned_job.hpp"
#include "pipeline/target/source_manifest.hpp"
#include "pipeline/target/source_records.hpp"
#include "pipeline/target/target_build.hpp"
#include "stages/read/extent_reader.hpp"
#include "stages/verify/replica_check.hpp"
#include "stages/write/extent_writer.hpp"
#include "stages/write/hdf5_sink.hpp"
#include "stages/write/publish.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Lets the journal know of a failed write-back at once: where ranks exchange, an error ends the
/// process.
class JournaledWriter : public ExtentWriter {
 public:
  JournaledWriter(WriteObserver const& observer, TargetBuild& target)
      : ExtentWriter(target.open_files(), observer, target.edges()), target_(target) {}

  void write(std::span<Extent const> extents, std::byte* staging) override {
    auto const error = capture([&] { ExtentWriter::write(extents, staging); });
    if (!error) return;
    target_.distrust_lost_writes();
    throw *error;
  }

 private:
  TargetBuild const& target_;
};

class Job : PlannedJob {
 public:
  Job(JobSpec const& spec, RunContext const& context, Comm const& comm)
      : PlannedJob(spec, context, comm),
        heartbeat_(comm, spec.run.stall_seconds),
        progress_({context.progress, static_cast<double>(spec.run.progress_seconds), context.stop,
                   context.events}) {}

  RunReport plan() {
    if (auto const error = capture([this] { prepare(); })) comm_.end_with(*error);
    report_.planned_only = true;
    report_.refusal = capture([this] { look_at_target(); });
    return std::move(report_);
  }

  RunReport execute() {
    if (auto const error = capture([this] { carry_out(); })) comm_.end_with(*error);
    return std::move(report_);
  }

 private:
  void carry_out() {
    prepare();
    if (comm_.size() > 1 && !heartbeat_.hears_others())
      report_.warnings.push_back(
          "this MPI gives less than MPI_THREAD_MULTIPLE: a rank whose host is gone would not be noticed");
    report_.planned_only = true;
    progress_.event("plan", Json().set("report", report_json(report_)));
    report_.planned_only = false;
    together(comm_, [&] { check_stop("before anything was written"); });
    if (spec_.source.replicas == ReplicaChoice::compare &&
        (plan_.plan.replicas_dropped > 0 || has_copies(plan_.source)))
      compare_replicas();
    open_trace();
    open_gpu();
    target_.emplace(spec_, plan_, comm_);
    target_->remember_source(context_.source_record);
    begin_target();
    if (!target_->is_complete()) {
      guarded(&Job::move_bytes,
              {ErrorKind::interrupted, ErrorKind::resources, ErrorKind::io, ErrorKind::stall});
      guarded(&Job::commit, {ErrorKind::interrupted, ErrorKind::resources});
    } else {
      guarded(&Job::only_publish, {});
    }
    add_warnings();
    add_io_warnings();
    finish_report();
    keep_trace();
  }

  DiskSpace space() const { return {report_.target_bytes, report_.free_bytes}; }

  /// What begin_target() would refuse. Collective.
  void look_at_target() const {
    together(comm_, [&] {
      if (comm_.rank() != 0) return;
      check_target(spec_, source_, space());
      look_at_place(spec_.target.path, existing_target(spec_));
    });
  }

  void compare_replicas() {
    begin_phase("comparing replicas of the source");
    FileSet files(source_.files, FileSet::Access::read);
    files.look_at_each(
        [this](std::uint32_t file, File const& opened) { check_unchanged(file, opened.stamp()); });
    ExtentReader reader(files, plan_.source.views);
    auto const read = [&](std::uint32_t file, std::uint64_t offset_bytes,
                          std::span<std::byte> into) {
      Extent const extent{file, offset_bytes, into.size(), 0};
      reader.read({&extent, 1}, into.data());
    };
    ReplicaFindings const findings =
        compare_small_replicas(*plan_.model, plan_.source, read, comm_);
    report_.replicas_compared = findings.compared;
    together(comm_, [&] {
      if (findings.faults.empty()) return;
      fail(
          ErrorKind::source,
          "{}: {}. Nothing was written. Ranks that train apart or a damaged file make such a checkpoint: take another one, or set source.replicas = "
          "\"first\" to take one of each.",
          spec_.source.path, listed(findings.faults, 4));
    });
    if (source_.storage == Storage::whole && source_.names == NameOwner::family) compare_tied(read);
  }

  /// Folders of Hugging Face seldom have copies, and then a config.json that ties what was trained
  /// apart is likely. Megatron writes a large copy itself, on its last stage.
  void compare_tied(CatalogReader const& read) {
    ReplicaFindings const findings = compare_copies(*plan_.model, plan_.source, read, comm_);
    report_.replicas_compared += findings.compared;
    together(comm_, [&] {
      if (findings.faults.empty()) return;
      fail(
          ErrorKind::source,
          "{}: {}. By config.json and the map it is a copy, so its values would be lost. Nothing was written. Where config.json says "
          "tie_word_embeddings = true, set it to false to keep both, or set source.replicas = \"first\" to drop the copy.",
          spec_.source.path, listed(findings.faults, 4));
    });
  }

  /// Neither source nor target may suffer from a trace.
  void open_trace() {
    if (!context_.trace_file) return;
    together(comm_, [&] {
      if (comm_.rank() != 0) return;
      check_outside_job(*context_.trace_file, "--trace", spec_, source_.files);
      trace_file_.emplace(*context_.trace_file);
    });
  }

  /// The target is complete by now: a trace that cannot be kept is worth a warning.
  void keep_trace() {
    if (!context_.trace_file) return;
    auto const error =
        capture([&] { write_trace(comm_, trace_, trace_file_ ? &*trace_file_ : nullptr); });
    if (error) report_.warnings.push_back(error->sentence());
  }

  /// A GPU takes as long to open as a small job to run: only now, when everything has been found in
  /// order. One that turns out to be of no use is an Error only when the job asks for it.
  void open_gpu() {
    if (!on_device()) return;
    auto const error = capture([&] {
      gpu_.emplace(path_, device_of_rank(devices_, comm_.rank()), comm_, spec_.run.stall_seconds);
      auto const sharers = static_cast<std::uint64_t>(
          path_.device == DeviceChoice::cuda ? ranks_on_device_of(devices_, comm_.rank()) : 1);
      together(comm_, [&] { gpu_->expect_memory(sharers * device_arena_bytes()); });
    });
    if (!error) {
      report_.device_name = gpu_->device_name();
      return;
    }
    if (spec_.run.device != DeviceChoice::automatic || path_.transport == TransportChoice::nccl)
      throw *error;
    gpu_.reset();
    path_.device = DeviceChoice::host;
    path_.why = "the GPU could not be used";
    report_.warnings.push_back("host memory is used instead of a GPU: " + error->sentence());
    together(comm_, [&] { describe_path(); });
  }

  std::uint64_t device_arena_bytes() const {
    return std::min(spec_.run.device_bytes(), arena_bytes());
  }

  /// After an error of these kinds the next run goes on with what is there; after any other it is
  /// removed.
  void guarded(void (Job::*work)(), std::initializer_list<ErrorKind> resumable) {
    auto const error = capture([&] { (this->*work)(); });
    if (!error) return;
    Error const reason = target_->explained(*error);
    // What was made of another source is of no use to the next run.
    bool const changed =
        error->is_agreed() ? comm_.max(source_changed_ ? 1 : 0) != 0 : source_changed_.load();
    target_->keep(!changed &&
                  std::find(resumable.begin(), resumable.end(), error->kind()) != resumable.end());
    throw reason;
  }

  void begin_target() {
    begin_phase("preparing the target");
    TargetBuild::Beginning beginning;
    beginning.space = space();
    beginning.fresh = context_.fresh;
    beginning.journaled = !by_library();
    beginning.identity = identity_;
    target_->begin(source_, beginning);
    add_warnings();
    if (target_->is_complete()) return;
    std::vector<std::uint32_t> kept;
    if (auto const& earlier = target_->earlier()) {
      report_.earlier_runs = earlier->runs;
      report_.bytes_reused = earlier->done.bytes;
      if (comm_.rank() == 0)
        progress_.note(fmt::format("going on with {} of {} that {} earlier {} wrote",
                                   human_bytes(earlier->done.bytes),
                                   human_bytes(plan_.plan.target_bytes), earlier->runs,
                                   earlier->runs == 1 ? "run" : "runs"));
      progress_.event(
          "resume",
          Json().set("earlier_runs", earlier->runs).set("bytes_reused", earlier->done.bytes));
      kept = drop_cells(plan_.plan, earlier->done.cells);
      together(comm_, [&] { describe_path(); });
    }
    target_->begin_rounds(exchanging(), std::move(kept));
  }

  void check_stop(std::string_view when) const {
    if ((context_.stop != nullptr && *context_.stop) || progress_.stop())
      fail(ErrorKind::interrupted,
           "stopped by a signal {}. Nothing was published: run the same command again to go on.",
           when);
  }

  void move_bytes() {
    Clock::time_point const start = Clock::now();
    FileSet source_set(source_.files, FileSet::Access::read, FileSet::default_open_limit,
                       source_io_);
    source_set.look_at_each(
        [this](std::uint32_t file, File const& opened) { check_unchanged(file, opened.stamp()); });
    digests_.assign(plan_.plan.tensor_bytes.size(), 0);
    StreamOptions options;
    options.memory_bytes = arena_bytes();
    options.stall_timeout_seconds = spec_.run.stall_seconds;
    options.exchanging = exchanging() || by_library();
    // Where libhdf5 writes, MPI belongs to the thread that does so: no words of other ranks are
    // heard meanwhile.
    options.stop = by_library() ? context_.stop : &progress_.stop();
    if (!by_library()) options.watch = [this] { progress_.look(streamed_bytes_); };
    options.views = plan_.source.views;
    options.digests = digests_;
    RecordSums const record_sums(source_.records);
    if (spec_.source.verify != SourceVerify::off) options.records = &record_sums;
    options.finished = [this](FinishedRound const& round) {
      target_->note(round);
      streamed_bytes_ += target_bytes_of(round.cells);
    };
    options.trace = context_.trace_file ? &trace_ : nullptr;
    if (gpu_) options.on_device = gpu_->setup(device_arena_bytes());
    RESHARD_EXPECT(options.views.empty() || plan_.source.real_files() == source_.files.size());
    WriteObserver const observer = [this](std::uint32_t file, std::uint64_t offset,
                                          std::span<std::byte const> bytes) {
      target_->observe(file, offset, bytes);
    };
    std::unique_ptr<ExtentSink> const sink = open_sink(observer);
    progress_.begin(comm_, "stream",
                    target_bytes_of(cells_of_rank(plan_.plan, comm_.rank(), comm_.size())),
                    StageTotal::of_this_rank);
    auto const failure =
        capture([&] { stats_ = stream(comm_, options, source_set, *sink, rounds()); });
    progress_.end(streamed_bytes_, failure && failure->kind() != ErrorKind::interrupted);
    together(comm_, [&] {
      bool const only_for_another =
          failure && failure->kind() == ErrorKind::interrupted && progress_.stopped_by_failure();
      if (failure && !only_for_another) throw *failure;
    });
    sink->close();
    if (by_library()) target_->sync_everywhere();
    write_mode_ = sink->mode_name();
    report_.stream_seconds = seconds_since(start);
  }

  std::unique_ptr<ExtentSink> open_sink(WriteObserver const& observer) {
    if (!by_library()) return std::make_unique<JournaledWriter>(observer, *target_);
    auto const transfer = spec_.target.io == TargetIo::collective ? hdf5::Transfer::collective
                                                                  : hdf5::Transfer::independent;
    return std::make_unique<Hdf5Sink>(comm_, target_->files(), transfer, observer,
                                      spec_.run.stall_seconds);
  }

  void commit() {
    Clock::time_point const start = Clock::now();
    begin_phase("completing the target's files");
    target_->finish(digests_);
    together(comm_, [&] {
      check_source_unchanged();
      if (manifest_)
        report_.digests_compared =
            check_source_digests(*manifest_, source_, plan_, target_->digests());
    });
    report_.records_compared =
        check_source_records(source_, plan_.source, target_->account(), comm_);
    begin_phase("reading the target back");
    Clock::time_point const checking = Clock::now();
    progress_.begin(comm_, "verify",
                    spec_.run.verify == VerifyChoice::written ? report_.target_bytes : 0,
                    StageTotal::of_all_ranks);
    std::uint64_t read_back = 0;
    auto const failure = capture([&] {
      target_->check(report_.source_format, report_.source_layout, [&](std::uint64_t bytes) {
        read_back = bytes;
        progress_.look(bytes);
        check_stop("while the target was read back");
      });
    });
    progress_.end(read_back, false);
    if (failure) throw *failure;
    together(comm_, [&] { check_stop("after all was written"); });
    report_.verify_seconds = seconds_since(checking);
    report_.bytes_verified = target_->bytes_checked();
    report_.total_digest = target_->total();
    begin_phase("publishing");
    target_->publish();
    report_.commit_seconds = seconds_since(start) - report_.verify_seconds;
  }

  void add_warnings() {
    for (std::string& warning : target_->take_warnings())
      report_.warnings.push_back(std::move(warning));
  }

  /// Where some rank could not read or write as the job asks.
  void add_io_warnings() {
    if (spec_.run.io == IoChoice::posix) return;
    std::array<std::pair<std::string_view, FileIo const&>, 2> const ways = {
        {{"read", *source_io_}, {"written", target_->open_files().io()}}};
    for (auto const& [done, io] : ways)
      for (std::string const& reason : comm_.all_gather(io.fallback())) {
        if (reason.empty()) continue;
        report_.warnings.push_back(fmt::format(
            "[run] io = \"{}\": {}. What such files hold was {} through the page cache.",
            name(spec_.run.io), reason, done));
        break;
      }
  }

  /// An earlier run of this job has written and verified everything.
  void only_publish() {
    Clock::time_point const start = Clock::now();
    if (comm_.rank() == 0)
      progress_.note(
          "an earlier run wrote and verified all of the target: it only gets its name now");
    together(comm_, [&] { check_stop("before the target got its name"); });
    report_.earlier_runs = 1;  // the last of them did the rest
    report_.bytes_reused = report_.target_bytes;
    report_.total_digest = target_->total();
    target_->publish();
    report_.commit_seconds = seconds_since(start);
  }

  /// Opened again: a network file system then asks the server.
  void check_source_unchanged() const {
    for (std::size_t f = static_cast<std::size_t>(comm_.rank()); f < source_.files.size();
         f += static_cast<std::size_t>(comm_.size()))
      check_unchanged(f, stamp_of(source_.files[f]));
    for (auto const& [path, stamp] : described_by_) check_unchanged(path, stamp, stamp_of(path));
  }

  void check_unchanged(std::size_t file, FileStamp const& now) const {
    check_unchanged(source_.files[file], source_.stamps[file], now);
  }

  void check_unchanged(fs::path const& path, FileStamp const& before, FileStamp const& now) const {
    auto const what = difference(before, now);
    if (what.empty()) return;
    source_changed_ = true;
    fail(
        ErrorKind::io,
        "{}: changed while it was read: {}. Nothing was published: run again when nobody writes the source.",
        path.string(), what);
  }

  /// Of all ranks together.
  StageReport stage_report(std::uint64_t bytes, StageTime const& time) const {
    auto const mean = [&](double seconds) {
      return static_cast<double>(comm_.sum(static_cast<std::int64_t>(seconds * 1e9))) / 1e9 /
             comm_.size();
    };
    return {static_cast<std::uint64_t>(comm_.sum(static_cast<std::int64_t>(bytes))),
            mean(time.busy_seconds), mean(time.stall_seconds)};
  }

  void finish_report() {
    auto const total = [&](std::uint64_t mine) {
      return static_cast<std::uint64_t>(comm_.sum(static_cast<std::int64_t>(mine)));
    };
    report_.bytes_read = total(stats_.bytes_read);
    report_.bytes_written = total(stats_.bytes_written);
    report_.bytes_exchanged = total(stats_.bytes_sent);
    report_.bytes_copied = total(stats_.bytes_copied);
    report_.bytes_uploaded = total(stats_.bytes_uploaded);
    report_.bytes_downloaded = total(stats_.bytes_downloaded);
    report_.device_memory_bytes = static_cast<std::uint64_t>(
        comm_.max(static_cast<std::int64_t>(stats_.device_high_water_bytes)));
    report_.read_calls = total(stats_.read_calls);
    report_.write_calls = total(stats_.write_calls);
    if (exchanging()) report_.rounds = stats_.rounds;
    report_.write_mode = write_mode_;
    report_.read = stage_report(stats_.bytes_read, stats_.read);
    report_.exchange = stage_report(stats_.bytes_copied + stats_.bytes_sent, stats_.exchange);
    report_.write = stage_report(stats_.bytes_written, stats_.write);
    report_.peak_memory_bytes =
        static_cast<std::uint64_t>(comm_.max(static_cast<std::int64_t>(peak_resident_bytes())));
    report_.total_seconds = seconds_since(begin_);
  }

  Heartbeat heartbeat_;
  std::optional<GpuPath> gpu_;
  Trace trace_;
  std::optional<TraceFile> trace_file_;  ///< of rank 0
  std::optional<TargetBuild> target_;
  std::vector<std::uint64_t> digests_;
  Progress progress_;
  std::atomic<std::uint64_t> streamed_bytes_ = 0;
  mutable std::atomic<bool> source_changed_ = false;
  StreamStats stats_;
  std::string write_mode_;
};

}  // namespace

RunReport run(JobSpec const& job, RunContext const& context, Comm const& comm) {
  return Job(job, context, comm).execute();
}

RunReport plan_only(JobSpec const& job, RunContext const& context, Comm const& comm) {
  return Job(job, context, comm).plan();
}

}  // namespace reshard
