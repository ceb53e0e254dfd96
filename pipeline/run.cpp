#include "pipeline/run.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "core/base/file_set.hpp"
#include "core/base/text.hpp"
#include "core/plan/schedule.hpp"
#include "pipeline/gpu_path.hpp"
#include "pipeline/path_choice.hpp"
#include "pipeline/paths.hpp"
#include "pipeline/source_manifest.hpp"
#include "pipeline/stream.hpp"
#include "pipeline/system_facts.hpp"
#include "pipeline/target_build.hpp"
#include "pipeline/target_request.hpp"
#include "pipeline/verify_one.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/read/open_source.hpp"
#include "stages/write/extent_writer.hpp"
#include "stages/write/hdf5_sink.hpp"
#include "stages/write/publish.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// The usual round: large enough for the disk, small enough that several are in flight.
constexpr std::uint64_t usual_round_bytes = 48U << 20;
/// Below this not even small tensors fit beside each other.
constexpr std::uint64_t least_memory_bytes = 1U << 20;
/// MPI-IO keeps every file of the target open on every rank.
constexpr std::size_t most_open_containers = 256;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string layout_text(SourceCheckpoint const& source) {
  if (source.huggingface) return fmt::format("{} safetensors files", source.files.size());
  if (source.logical) return fmt::format("logical tensors in {} HDF5 files", source.files.size());
  if (source.dcp && source.dcp->container == TensorContainer::hdf5)
    return fmt::format("{} datasets in {} HDF5 files", source.dcp->metadata.tensors.size(), source.files.size());
  if (source.dcp) return fmt::format("{} chunks in {} files", source.dcp->metadata.chunks.size(), source.files.size());
  MeshSizes const& s = source.megatron->classification.sizes;
  return fmt::format("tp {} · pp {} · vpp {} · ep {} · etp {}, {} shards", s.tp, s.pp, s.vpp, s.ep, s.etp, source.files.size());
}

class Job {
 public:
  Job(JobSpec const& spec, RunContext const& context, Comm const& comm) : spec_(spec), context_(context), comm_(comm), begin_(Clock::now()) {
    report_.job = spec;
    report_.ranks = comm.size();
  }

  RunReport plan() {
    prepare();
    report_.planned_only = true;
    return std::move(report_);
  }

  RunReport execute() {
    prepare();
    open_trace();
    open_gpu();
    target_.emplace(spec_, plan_, comm_);
    target_->begin(source_, report_.target_bytes, report_.free_bytes);
    move_bytes();
    commit();
    finish_report();
    keep_trace();
    return std::move(report_);
  }

 private:
  bool exchanging() const { return spec_.run.transport != TransportChoice::automatic && comm_.size() > 1; }
  /// Ranks write through libhdf5 and MPI-IO, where they wait for each other.
  bool by_library() const { return spec_.target.io == TargetIo::independent || spec_.target.io == TargetIo::collective; }
  bool on_device() const { return path_.device != DeviceChoice::host; }

  void check_choices() const {
    for (auto const& [key, bytes] : {std::pair("memory", spec_.run.memory_bytes), std::pair("device_memory", spec_.run.device_bytes())})
      if (bytes < least_memory_bytes)
        fail(ErrorKind::usage, "[run] {} = {} ({} bytes): at least {} are needed. Set it to \"1 MiB\" or more.", key, human_bytes(bytes), bytes,
             human_bytes(least_memory_bytes));
    check_verify();
    if (by_library() && exchanging())
      fail(ErrorKind::usage,
           "[target] io = \"{}\": libhdf5 uses MPI on another thread than run.transport = \"{}\", and each would wait for ranks that are busy with "
           "the "
           "other. Set io or transport to \"auto\".",
           spec_.target.io == TargetIo::collective ? "collective" : "independent", spec_.run.transport == TransportChoice::mpi ? "mpi" : "nccl");
  }

  void check_verify() const {
    if (spec_.target.io == TargetIo::collective && spec_.run.verify != VerifyChoice::written)
      fail(ErrorKind::usage,
           "[target] io = \"collective\": some MPI libraries report success for a collective write that failed, and run.verify = \"{}\" does not "
           "read the "
           "files back. Set verify = \"written\", or another io.",
           spec_.run.verify == VerifyChoice::off ? "off" : "streamed");
  }

  void check_files() const {
    if (by_library() && plan_.files.size() > most_open_containers)
      fail(ErrorKind::usage,
           "[target] part_bytes: makes {} files, with this io at most {} can be open together. Raise part_bytes, or set io = \"direct\".",
           plan_.files.size(), most_open_containers);
  }

  /// The three DCP formats are told apart by what is in the folder; a plain reading fits them all.
  void check_format() {
    CheckpointFormat const stated = spec_.source.format;
    if (stated == CheckpointFormat::dcp && source_.dcp) source_.dcp->flavour = dcp::Flavour::plain;  // names are just names
    if (stated != CheckpointFormat::torch_dist && stated != CheckpointFormat::fsdp_dtensor) return;
    if (name(stated) == format_of(source_)) return;
    fail(ErrorKind::source, "{}: is a {} checkpoint by its files and keys, source.format says {}. Correct the key, or leave it out.",
         spec_.source.path, format_of(source_), name(stated));
  }

  void prepare() {
    together(comm_, [&] { check_choices(); });
    Clock::time_point const start = Clock::now();
    source_ = open_source(spec_.source.path, source_format(spec_.source.format), {}, comm_);
    together(comm_, [&] { check_format(); });
    if (spec_.source.verify == SourceVerify::files) check_source_files();
    report_.header_seconds = seconds_since(start);
    Clock::time_point const planning = Clock::now();
    std::uint64_t const parts = exchanging() ? 10 : 4;
    limits_.staging_bytes = round_memory() / parts;
    limits_.digests = spec_.run.verify != VerifyChoice::off;
    limits_.cell_bytes = std::min<std::uint64_t>(16U << 20, round_memory() / 32);
    together(comm_, [&] {
      for (fs::path const& file : source_.files) stamps_.push_back(stamp_of(file));
      plan_ = make_job_plan(source_, target_request(spec_, context_.map_folders), limits_);
      check_files();
    });
    if (limits_.digests && spec_.source.verify != SourceVerify::off)
      together(comm_, [&] { manifest_ = manifest_of(spec_.source.path, source_, plan_.warnings); });
    choose_path_of_bytes();
    together(comm_, [&] { describe(); });
    report_.plan_seconds = seconds_since(planning);
  }

  void check_source_files() const {
    std::vector<std::string> const faults = file_faults(spec_.source.path, source_, comm_);
    if (!faults.empty())
      fail(ErrorKind::source, "{}: the files are not what was recorded when they were written: {}. Restore them from a copy.", spec_.source.path,
           listed(faults, 8));
  }

  /// Staging memory that a round may count on wherever it is carried out.
  std::uint64_t round_memory() const {
    bool const host_only = spec_.run.device == DeviceChoice::host;
    return host_only ? spec_.run.memory_bytes : std::min(spec_.run.memory_bytes, spec_.run.device_bytes());
  }

  void choose_path_of_bytes() {
    PathLoad busiest;
    for (int r = 0; r < comm_.size(); ++r) {
      PathLoad const load = load_of(plan_.plan, cells_of_rank(plan_.plan, r, comm_.size()), plan_.source.views, first_view_file());
      if (load.host_copy_seconds + load.host_compute_seconds >= busiest.host_copy_seconds + busiest.host_compute_seconds) busiest = load;
    }
    bool const asks_for_gpu = spec_.run.device == DeviceChoice::cuda || spec_.run.transport == TransportChoice::nccl;
    bool const may_help = spec_.run.device == DeviceChoice::automatic && !reason_against_gpus(busiest);
    devices_ = asks_for_gpu || may_help ? find_devices(comm_) : std::vector<RankDevices>(static_cast<std::size_t>(comm_.size()));
    together(comm_, [&] { path_ = choose_path(spec_.run, devices_, busiest); });
  }

  std::uint32_t first_view_file() const { return static_cast<std::uint32_t>(source_.files.size()); }

  void describe() {
    report_.source_format = format_of(source_);
    report_.source_layout = layout_text(source_);
    report_.map = plan_.map_name;
    report_.warnings = plan_.warnings;
    report_.logical_tensors = plan_.plan.logical_tensors;
    report_.source_files = source_.files.size();
    report_.source_tensors = plan_.source.blobs.size();
    report_.replicas_not_read = plan_.plan.replicas_dropped;
    report_.target_files = plan_.files.size();
    report_.target_tensors = plan_.target.blobs.size();
    report_.regions = plan_.plan.joined_regions;
    report_.payload_read = plan_.plan.source_bytes;
    report_.payload_written = plan_.plan.target_bytes;
    for (TargetFile const& file : plan_.files) report_.target_bytes += file.size_bytes;
    report_.free_bytes = free_bytes_at(spec_.target.path);
    describe_path();
  }

  void describe_path() {
    report_.transport = !exchanging() ? "direct" : path_.transport == TransportChoice::nccl ? "nccl" : "mpi";
    report_.device = path_.device == DeviceChoice::host ? "host" : path_.device == DeviceChoice::cuda ? "cuda" : "emulated";
    report_.path_reason = path_.why;
    report_.staging_bytes = static_cast<std::uint64_t>(arena_bytes());
    report_.rounds = count_rounds();
  }

  /// By how much a round's staging may outgrow the plan: on a device programs stand beside the bytes (they weigh something where pieces are tiny),
  /// and the stored bytes of computed values, too.
  double growth() const { return on_device() ? 1 + staging_growth(plan_.source.views) : 1; }

  std::uint64_t round_bytes() const {
    return static_cast<std::uint64_t>(static_cast<double>(std::min(usual_round_bytes, limits_.staging_bytes)) / growth());
  }

  /// The arena: what the job states, or less when this rank has less to do. Fresh memory costs time.
  std::uint64_t arena_bytes() const {
    // An exchanging rank may read for every other: the whole plan counts, messages too.
    CellRange cells = cells_of_rank(plan_.plan, comm_.rank(), comm_.size());
    if (exchanging()) cells = {0, plan_.plan.cells.size()};
    std::uint64_t factor = exchanging() ? 3 : 1;
    factor *= static_cast<std::uint64_t>(std::ceil(growth()));
    std::uint64_t needed = least_memory_bytes;
    for (std::size_t i = cells.begin; i < cells.end && needed < spec_.run.memory_bytes; ++i)
      needed += factor * (plan_.plan.cells[i].staging_bytes + (64U << 10));
    return std::min(needed, spec_.run.memory_bytes);
  }

  /// Of all ranks together; where bytes are exchanged every rank takes part in all of them.
  std::uint64_t count_rounds() const {
    if (exchanging()) return exchange_rounds().count();
    std::uint64_t rounds = 0;
    for (int r = 0; r < comm_.size(); ++r) {
      CellRange cells = cells_of_rank(plan_.plan, r, comm_.size());
      for (; cells.begin < cells.end; ++rounds) cells.begin = round_end(plan_.plan, cells, round_bytes());
    }
    return rounds;
  }

  ExchangeRounds exchange_rounds() const {
    std::vector<int> readers = balanced_readers(plan_.plan, source_.files.size() + plan_.source.views.size(), comm_.size());
    return {plan_.plan, std::move(readers), comm_.rank(), comm_.size(), exchange_round_bytes()};
  }

  RoundSource rounds() {
    if (!exchanging()) return direct_rounds(plan_.plan, cells_of_rank(plan_.plan, comm_.rank(), comm_.size()), round_bytes());
    auto exchange = std::make_shared<ExchangeRounds>(exchange_rounds());
    return [exchange] { return exchange->next(); };
  }

  std::uint64_t exchange_round_bytes() const {
    return static_cast<std::uint64_t>(static_cast<double>(on_device() ? round_memory() : spec_.run.memory_bytes) / 4 / growth());
  }

  /// Neither source nor target may suffer from a trace.
  void open_trace() {
    if (!context_.trace_file) return;
    together(comm_, [&] {
      if (comm_.rank() != 0) return;
      if (context_.trace_file->empty()) fail(ErrorKind::usage, "--trace: the path is empty. Choose another path for --trace.");
      std::error_code ignored;
      auto const real = [&](fs::path const& path) { return fs::weakly_canonical(fs::absolute(path), ignored); };
      fs::path const trace = real(*context_.trace_file);
      fs::path const target = spec_.target.path;
      std::vector<fs::path> taken{spec_.source.path, target, staging_of(target), lock_of(target)};
      taken.insert(taken.end(), source_.files.begin(), source_.files.end());
      for (fs::path const& path : taken)
        if (holds(real(path), trace))
          fail(ErrorKind::usage, "--trace {}: {} belongs to this job's source or target. Choose another path for --trace.", trace.string(),
               path.string());
      trace_file_.emplace(*context_.trace_file);
    });
  }

  /// The target is complete by now: a trace that cannot be kept is worth a warning.
  void keep_trace() {
    if (!context_.trace_file) return;
    auto const error = capture([&] { write_trace(comm_, trace_, trace_file_ ? &*trace_file_ : nullptr); });
    if (error) report_.warnings.push_back(error->sentence());
  }

  /// A GPU takes as long to open as a small job to run: only now, when everything has been found in order. One that turns out to be of no use is an
  /// Error only when the job asks for it.
  void open_gpu() {
    if (!on_device()) return;
    auto const error = capture([&] {
      gpu_.emplace(path_, device_of_rank(devices_, comm_.rank()), comm_, StreamOptions().stall_timeout_seconds);
      auto const sharers = static_cast<std::uint64_t>(path_.device == DeviceChoice::cuda ? ranks_on_device_of(devices_, comm_.rank()) : 1);
      together(comm_, [&] { gpu_->expect_memory(sharers * device_arena_bytes()); });
    });
    if (!error) {
      report_.device_name = gpu_->device_name();
      return;
    }
    if (spec_.run.device != DeviceChoice::automatic || path_.transport == TransportChoice::nccl) throw *error;
    gpu_.reset();
    path_.device = DeviceChoice::host;
    path_.why = "the GPU could not be used";
    report_.warnings.push_back("host memory is used instead of a GPU: " + error->sentence());
    together(comm_, [&] { describe_path(); });
  }

  std::uint64_t device_arena_bytes() const { return std::min(spec_.run.device_bytes(), arena_bytes()); }

  void move_bytes() {
    Clock::time_point const start = Clock::now();
    FileSet source_set(source_.files, FileSet::Access::read);
    FileSet target_set(target_->files(), FileSet::Access::write);
    digests_.assign(plan_.plan.tensor_bytes.size(), 0);
    StreamOptions options;
    options.memory_bytes = arena_bytes();
    options.exchanging = exchanging() || by_library();
    options.stop = context_.stop;
    options.views = plan_.source.views;
    options.digests = digests_;
    options.trace = context_.trace_file ? &trace_ : nullptr;
    if (gpu_) options.on_device = gpu_->setup(device_arena_bytes());
    RESHARD_EXPECT(options.views.empty() || plan_.source.real_files() == source_.files.size());
    WriteObserver const observer = [this](std::uint32_t file, std::uint64_t offset, std::span<std::byte const> bytes) {
      target_->observe(file, offset, bytes);
    };
    std::unique_ptr<ExtentSink> const sink = open_sink(target_set, observer);
    together(comm_, [&] { stats_ = stream(comm_, options, source_set, *sink, rounds()); });
    sink->close();
    write_mode_ = sink->mode_name();
    report_.stream_seconds = seconds_since(start);
  }

  std::unique_ptr<ExtentSink> open_sink(FileSet& target_set, WriteObserver const& observer) const {
    if (!by_library()) return std::make_unique<ExtentWriter>(target_set, observer);
    auto const transfer = spec_.target.io == TargetIo::collective ? hdf5::Transfer::collective : hdf5::Transfer::independent;
    return std::make_unique<Hdf5Sink>(comm_, target_->files(), transfer, observer, StreamOptions().stall_timeout_seconds);
  }

  void commit() {
    Clock::time_point const start = Clock::now();
    target_->finish(digests_);
    together(comm_, [&] {
      check_source_unchanged();
      if (manifest_) report_.digests_compared = check_source_digests(*manifest_, source_, plan_, target_->digests());
    });
    Clock::time_point const checking = Clock::now();
    target_->check(report_.source_format, report_.source_layout);
    report_.verify_seconds = seconds_since(checking);
    report_.bytes_verified = target_->bytes_checked();
    report_.total_digest = target_->total();
    target_->publish();
    report_.commit_seconds = seconds_since(start) - report_.verify_seconds;
  }

  void check_source_unchanged() const {
    for (std::size_t f = static_cast<std::size_t>(comm_.rank()); f < source_.files.size(); f += static_cast<std::size_t>(comm_.size()))
      if (stamp_of(source_.files[f]) != stamps_[f])
        fail(ErrorKind::io, "{}: changed while it was read. Nothing was published: run again when nobody writes the source.",
             source_.files[f].string());
  }

  void finish_report() {
    auto const total = [&](std::uint64_t mine) { return static_cast<std::uint64_t>(comm_.sum(static_cast<std::int64_t>(mine))); };
    report_.bytes_read = total(stats_.bytes_read);
    report_.bytes_written = total(stats_.bytes_written);
    report_.bytes_exchanged = total(stats_.bytes_sent);
    report_.bytes_copied = total(stats_.bytes_copied);
    report_.bytes_uploaded = total(stats_.bytes_uploaded);
    report_.bytes_downloaded = total(stats_.bytes_downloaded);
    report_.device_memory_bytes = static_cast<std::uint64_t>(comm_.max(static_cast<std::int64_t>(stats_.device_high_water_bytes)));
    report_.read_calls = total(stats_.read_calls);
    report_.write_calls = total(stats_.write_calls);
    if (exchanging()) report_.rounds = stats_.rounds;
    report_.write_mode = write_mode_;
    report_.peak_memory_bytes = static_cast<std::uint64_t>(comm_.max(static_cast<std::int64_t>(peak_resident_bytes())));
    report_.total_seconds = seconds_since(begin_);
  }

  JobSpec const& spec_;
  RunContext const& context_;
  Comm const& comm_;
  Clock::time_point begin_;
  PlanLimits limits_;
  SourceCheckpoint source_;
  std::vector<FileStamp> stamps_;
  JobPlan plan_;
  std::optional<Manifest> manifest_;  ///< of the source
  std::vector<RankDevices> devices_;
  PathChoice path_;
  std::optional<GpuPath> gpu_;
  Trace trace_;
  std::optional<TraceFile> trace_file_;  ///< of rank 0
  std::optional<TargetBuild> target_;
  std::vector<std::uint64_t> digests_;
  StreamStats stats_;
  std::string write_mode_;
  RunReport report_;
};

}  // namespace

RunReport run(JobSpec const& job, RunContext const& context, Comm const& comm) { return Job(job, context, comm).execute(); }

RunReport plan_only(JobSpec const& job, RunContext const& context, Comm const& comm) { return Job(job, context, comm).plan(); }

}  // namespace reshard
