#include "pipeline/run.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "core/base/file_set.hpp"
#include "core/base/text.hpp"
#include "core/plan/schedule.hpp"
#include "pipeline/gpu_path.hpp"
#include "pipeline/path_choice.hpp"
#include "pipeline/paths.hpp"
#include "pipeline/stream.hpp"
#include "pipeline/system_facts.hpp"
#include "pipeline/target_request.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/read/open_source.hpp"
#include "stages/write/copy_beside.hpp"
#include "stages/write/publish.hpp"
#include "stages/write/target_files.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// The usual round: large enough for the disk, small enough that several are in flight.
constexpr std::uint64_t usual_round_bytes = 48U << 20;
/// Below this not even small tensors fit beside each other.
constexpr std::uint64_t least_memory_bytes = 1U << 20;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string layout_text(SourceCheckpoint const& source) {
  if (source.huggingface) return fmt::format("{} safetensors files", source.files.size());
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
    std::optional<Publication> publication;
    begin_target(publication);
    move_bytes();
    commit(publication);
    finish_report();
    keep_trace();
    return std::move(report_);
  }

 private:
  bool exchanging() const { return spec_.run.transport != TransportChoice::automatic && comm_.size() > 1; }
  bool on_device() const { return path_.device != DeviceChoice::host; }

  void check_choices() const {
    for (auto const& [key, bytes] : {std::pair("memory", spec_.run.memory_bytes), std::pair("device_memory", spec_.run.device_bytes())})
      if (bytes < least_memory_bytes)
        fail(ErrorKind::usage, "[run] {} = {} ({} bytes): at least {} are needed. Set it to \"1 MiB\" or more.", key, human_bytes(bytes), bytes,
             human_bytes(least_memory_bytes));
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
    report_.header_seconds = seconds_since(start);
    Clock::time_point const planning = Clock::now();
    std::uint64_t const parts = exchanging() ? 10 : 4;
    limits_.staging_bytes = round_memory() / parts;
    limits_.cell_bytes = std::min<std::uint64_t>(16U << 20, round_memory() / 32);
    together(comm_, [&] {
      for (fs::path const& file : source_.files) stamps_.push_back(stamp_of(file));
      plan_ = make_job_plan(source_, target_request(spec_, context_.map_folders), limits_);
    });
    choose_path_of_bytes();
    together(comm_, [&] { describe(); });
    report_.plan_seconds = seconds_since(planning);
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

  /// Links can lead from the source into the target: replacing the target would then destroy what is read.
  void check_source_apart() const {
    std::error_code ignored;
    fs::path const target = fs::weakly_canonical(fs::absolute(spec_.target.path), ignored);
    for (fs::path const& file : source_.files) {
      fs::path const real = fs::weakly_canonical(fs::absolute(file), ignored);
      bool const beside_target = holds(real.parent_path(), target);
      if (holds(target, real) || beside_target)
        fail(ErrorKind::usage, "[target] path: {} {} the source's {} (really {}). Choose a target outside of the source.", target.string(),
             beside_target ? "lies in the folder of" : "holds", file.string(), real.string());
    }
  }

  /// replace = true is no leave to remove what is no checkpoint.
  void check_replaceable() const {
    std::error_code ignored;
    fs::path const target = spec_.target.path;
    if (!spec_.target.replace || !fs::is_directory(target, ignored) || fs::is_empty(target, ignored)) return;
    if (megatron::looks_like_megatron(target) || huggingface::looks_like_folder(target) || dcp::looks_like_dcp(target)) return;
    fail(ErrorKind::target,
         "{}: is not empty and no checkpoint, so target.replace = true does not remove it. Choose another target.path, or remove it yourself.",
         target.string());
  }

  void begin_target(std::optional<Publication>& publication) {
    together(comm_, [&] {
      if (comm_.rank() != 0) return;
      check_source_apart();
      check_replaceable();
      if (report_.free_bytes < report_.target_bytes)
        fail(ErrorKind::resources, "{}: {} free, this run writes {}. Free {} or set target.path to another file system.", spec_.target.path,
             human_bytes(report_.free_bytes), human_bytes(report_.target_bytes), human_bytes(report_.target_bytes - report_.free_bytes));
      publication.emplace(spec_.target.path, spec_.target.replace ? ExistingTarget::replace : ExistingTarget::refuse);
    });
    fs::path const staging = staging_of(spec_.target.path);
    for (TargetFile const& file : plan_.files) layouts_.push_back({staging / file.path, file.size_bytes, file.torch, file.header, file.items});
    together(comm_, [&] { for_my_files([&](std::uint32_t f) { create_target_file(layouts_[f]); }); });
  }

  void for_my_files(std::function<void(std::uint32_t)> const& work) const {
    for (std::size_t f = static_cast<std::size_t>(comm_.rank()); f < layouts_.size(); f += static_cast<std::size_t>(comm_.size()))
      work(static_cast<std::uint32_t>(f));
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
    checksums_.emplace(layouts_);
    std::vector<fs::path> targets;
    for (TargetLayout const& layout : layouts_) targets.push_back(layout.path);
    FileSet source_set(source_.files, FileSet::Access::read);
    FileSet target_set(std::move(targets), FileSet::Access::write);
    StreamOptions options;
    options.memory_bytes = arena_bytes();
    options.exchanging = exchanging();
    options.stop = context_.stop;
    options.views = plan_.source.views;
    options.trace = context_.trace_file ? &trace_ : nullptr;
    if (gpu_) options.on_device = gpu_->setup(device_arena_bytes());
    RESHARD_EXPECT(options.views.empty() || plan_.source.real_files() == source_.files.size());
    WriteObserver const observer = [this](std::uint32_t file, std::uint64_t offset, std::span<std::byte const> bytes) {
      checksums_->add(file, offset, bytes);
    };
    together(comm_, [&] { stats_ = stream(comm_, options, source_set, target_set, rounds(), observer); });
    report_.stream_seconds = seconds_since(start);
  }

  void commit(std::optional<Publication>& publication) {
    Clock::time_point const start = Clock::now();
    comm_.xor_all(checksums_->shares());
    together(comm_, [&] {
      for_my_files([&](std::uint32_t f) { finish_target_file(layouts_[f], checksums_->of_file(f)); });
      check_source_unchanged();
    });
    together(comm_, [&] {
      if (comm_.rank() != 0) return;
      write_small_files(publication->staging());
      publication->publish();
    });
    report_.commit_seconds = seconds_since(start);
  }

  void check_source_unchanged() const {
    for (std::size_t f = static_cast<std::size_t>(comm_.rank()); f < source_.files.size(); f += static_cast<std::size_t>(comm_.size()))
      if (stamp_of(source_.files[f]) != stamps_[f])
        fail(ErrorKind::io, "{}: changed while it was read. Nothing was published: run again when nobody writes the source.",
             source_.files[f].string());
  }

  /// Sidecars and texts; what makes the checkpoint count comes last.
  void write_small_files(fs::path const& staging) const {
    if (plan_.reference)
      for (std::string const& name : plan_.reference->sidecars) huggingface::copy_sidecar(*plan_.reference, name, staging);
    for (SideCopy const& side : plan_.side_copies) copy_beside(side.from, staging / side.to);
    for (bool const mark : {false, true})
      for (TextFile const& text : plan_.texts)
        if (text.mark == mark) write_text_file(staging / text.path, text.make ? text.make() : text.text);
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
    report_.write_mode = name_of(stats_.write_mode);
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
  std::vector<RankDevices> devices_;
  PathChoice path_;
  std::optional<GpuPath> gpu_;
  Trace trace_;
  std::optional<TraceFile> trace_file_;  ///< of rank 0
  std::vector<TargetLayout> layouts_;
  std::optional<RecordChecksums> checksums_;
  StreamStats stats_;
  RunReport report_;
};

}  // namespace

RunReport run(JobSpec const& job, RunContext const& context, Comm const& comm) { return Job(job, context, comm).execute(); }

RunReport plan_only(JobSpec const& job, RunContext const& context, Comm const& comm) { return Job(job, context, comm).plan(); }

}  // namespace reshard
