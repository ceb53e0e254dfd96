#include "pipeline/run/planned_job.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "core/base/activity.hpp"
#include "core/base/sight.hpp"
#include "core/base/text.hpp"
#include "core/formats/stamped_files.hpp"
#include "core/io/io_engines.hpp"
#include "core/plan/round_sizes.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/job/target_request.hpp"
#include "pipeline/run/agreement.hpp"
#include "pipeline/run/gpu_path.hpp"
#include "pipeline/target/source_manifest.hpp"
#include "pipeline/verify/verify_one.hpp"
#include "stages/read/look_at_objects.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// MPI-IO keeps every file of the target open on every rank.
constexpr std::size_t most_open_containers = 256;

/// The files that reading `files` opens: a view stands for those of its stored tensors.
std::set<std::uint32_t> stored_files(std::set<std::uint32_t> const& files,
                                     std::span<SourceView const> views, std::uint32_t first_view) {
  std::set<std::uint32_t> stored;
  for (std::uint32_t const file : files) {
    if (file < first_view) {
      stored.insert(file);
      continue;
    }
    SourceView const& view = views[file - first_view];
    stored.insert(view.stored.file);
    for (auto const* const place : {&view.scale, &view.second, &view.zero_points})
      if (*place) stored.insert((*place)->file);
  }
  return stored;
}

}  // namespace

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

PlannedJob::PlannedJob(JobSpec const& spec, RunContext const& context, Comm const& comm)
    : spec_(spec), context_(context), comm_(comm), source_io_(make_file_io(name(spec.run.io))) {
  report_.job = spec;
  report_.ranks = comm.size();
}

void PlannedJob::check_choices() const {
  for (auto const& [key, bytes] : {std::pair("memory", spec_.run.memory_bytes),
                                   std::pair("device_memory", spec_.run.device_bytes())})
    if (bytes < least_staging_bytes)
      fail(ErrorKind::usage,
           "[run] {} = {} ({} bytes): at least {} are needed. Set it to \"1 MiB\" or more.", key,
           human_bytes(bytes), bytes, human_bytes(least_staging_bytes));
  check_verify();
  if (by_library() && exchanging())
    fail(
        ErrorKind::usage,
        "[target] io = \"{}\": libhdf5 uses MPI on another thread than run.transport = \"{}\", and each would wait for ranks that are busy with "
        "the "
        "other. Set io or transport to \"auto\".",
        spec_.target.io == TargetIo::collective ? "collective" : "independent",
        spec_.run.transport == TransportChoice::mpi ? "mpi" : "nccl");
}

void PlannedJob::check_verify() const {
  if (spec_.target.io == TargetIo::collective && spec_.run.verify != VerifyChoice::written)
    fail(
        ErrorKind::usage,
        "[target] io = \"collective\": some MPI libraries report success for a collective write that failed, and run.verify = \"{}\" does not "
        "read the "
        "files back. Set verify = \"written\", or another io.",
        spec_.run.verify == VerifyChoice::off ? "off" : "streamed");
}

void PlannedJob::check_files() const {
  if (by_library() && plan_.files.size() > most_open_containers)
    fail(
        ErrorKind::usage,
        "[target] part_bytes: makes {} files, with this io at most {} can be open together. Raise part_bytes, or set io = \"direct\".",
        plan_.files.size(), most_open_containers);
}

void PlannedJob::prepare() {
  together(comm_, [&] { check_choices(); });
  {
    OpenedFiles const opened;
    read_source();
    make_plan();
    if (comm_.rank() == 0) described_by_ = opened.stamps();
  }
  agree_on_plan();
}

void PlannedJob::read_source() {
  begin_phase("reading the source's headers");
  Clock::time_point const start = Clock::now();
  source_ = open_source(spec_.source.path, spec_.source.format, {}, comm_);
  if (spec_.source.verify == SourceVerify::files) check_source_files();
  if (spec_.source.objects == SourceObjects::look &&
      format_of(spec_.target.format).target().objects)
    look_at_objects(source_, comm_);
  report_.header_seconds = seconds_since(start);
}

void PlannedJob::make_plan() {
  begin_phase("planning");
  Clock::time_point const planning = Clock::now();
  std::uint64_t const parts = exchanging() ? 10 : 4;
  limits_.staging_bytes = round_memory() / parts;
  limits_.digests = spec_.run.verify != VerifyChoice::off;
  limits_.alignment.io_bytes = source_io_->alignment().memory_bytes;
  limits_.cell_bytes = cell_bytes_for(round_memory());
  together_seeing(comm_, [&] {
    plan_ = make_job_plan(source_, target_request(spec_, context_.map_folders), limits_);
    check_files();
    if (limits_.digests && spec_.source.verify != SourceVerify::off)
      manifest_ = manifest_of(spec_.source.path, source_, plan_.warnings);
  });
  choose_path_of_bytes();
  together(comm_, [&] { describe(); });
  report_.plan_seconds = seconds_since(planning);
}

/// Nothing is written before every rank has planned the same job from the same source.
void PlannedJob::agree_on_plan() {
  program_digest();  // of this rank's own
  together_seeing(comm_, [&] { identity_ = identity_of(spec_, source_, plan_); });
  check_same_identity(comm_, identity_);
  check_same_files();
}

std::set<std::uint32_t> PlannedJob::files_to_read() const {
  std::set<std::uint32_t> files;
  std::vector<int> const readers =
      exchanging() ? balanced_readers(plan_.plan, source_.files.size() + plan_.source.views.size(),
                                      comm_.size())
                   : std::vector<int>();
  CellRange const mine = exchanging() ? CellRange{0, plan_.plan.cells.size()}
                                      : cells_of_rank(plan_.plan, comm_.rank(), comm_.size());
  for (std::size_t i = mine.begin; i < mine.end; ++i) {
    Cell const& cell = plan_.plan.cells[i];
    for (std::size_t r = cell.first_region; r < cell.first_region + cell.region_count; ++r)
      if (std::uint32_t const file = plan_.plan.regions[r].src_file;
          readers.empty() || readers[file] == comm_.rank())
        files.insert(file);
  }
  return stored_files(files, plan_.source.views, first_view_file());
}

/// A rank that reads another file than the one whose header was read would write wrong values: it
/// looks at its files before anything is written, and again whenever it opens one.
void PlannedJob::check_same_files() const {
  if (comm_.size() == 1) return;
  together(comm_, [&] {
    for (std::uint32_t const f : files_to_read()) {
      std::optional<FileStamp> now;
      auto const unseen = capture([&] { now = File::open_for_reading(source_.files[f]).stamp(); });
      if (unseen) throw unseen->in(fmt::format("rank {}", comm_.rank()));
      check_same_file(f, *now);
    }
  });
}

void PlannedJob::check_same_file(std::size_t file, FileStamp const& now) const {
  if (!difference(source_.stamps[file], now).empty())
    refuse_two_worlds(source_.files[file], comm_.rank(), now, source_.stamped_by[file],
                      source_.stamps[file]);
}

void PlannedJob::check_source_files() const {
  std::vector<std::string> const faults = file_faults(spec_.source.path, source_, comm_);
  if (!faults.empty())
    fail(
        ErrorKind::source,
        "{}: the files are not what was recorded when they were written: {}. Restore them from a copy.",
        spec_.source.path, listed(faults, 8));
}

/// Staging memory that a round may count on wherever it is carried out.
std::uint64_t PlannedJob::round_memory() const {
  bool const host_only = spec_.run.device == DeviceChoice::host;
  return host_only ? spec_.run.memory_bytes
                   : std::min(spec_.run.memory_bytes, spec_.run.device_bytes());
}

void PlannedJob::choose_path_of_bytes() {
  PathLoad busiest;
  RankCells const cells(plan_.plan, comm_.size());
  for (int r = 0; r < comm_.size(); ++r) {
    PathLoad const load = load_of(plan_.plan, cells.of(r), plan_.source.views, first_view_file());
    if (load.host_copy_seconds + load.host_compute_seconds >=
        busiest.host_copy_seconds + busiest.host_compute_seconds)
      busiest = load;
  }
  bool const asks_for_gpu =
      spec_.run.device == DeviceChoice::cuda || spec_.run.transport == TransportChoice::nccl;
  bool const may_help =
      spec_.run.device == DeviceChoice::automatic && !reason_against_gpus(busiest);
  devices_ = asks_for_gpu || may_help
                 ? find_devices(comm_)
                 : std::vector<RankDevices>(static_cast<std::size_t>(comm_.size()));
  together(comm_, [&] { path_ = choose_path(spec_.run, devices_, busiest); });
}

void PlannedJob::describe() {
  report_.source_format = source_.format->name();
  report_.source_layout = source_.summary;
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

void PlannedJob::describe_path() {
  report_.transport = !exchanging()                              ? "direct"
                      : path_.transport == TransportChoice::nccl ? "nccl"
                                                                 : "mpi";
  report_.device = path_.device == DeviceChoice::host   ? "host"
                   : path_.device == DeviceChoice::cuda ? "cuda"
                                                        : "emulated";
  report_.path_reason = path_.why;
  report_.staging_bytes = static_cast<std::uint64_t>(arena_bytes());
  report_.rounds = count_rounds();
}

/// By how much a round's staging may outgrow the plan: on a device programs stand beside the bytes
/// (they weigh something where pieces are tiny), and the stored bytes of computed values, too.
double PlannedJob::growth() const {
  return on_device() ? 1 + staging_growth(plan_.source.views) : 1;
}

std::uint64_t PlannedJob::round_bytes() const {
  return static_cast<std::uint64_t>(
      static_cast<double>(std::min(usual_round_bytes, limits_.staging_bytes)) / growth());
}

std::uint64_t PlannedJob::arena_bytes() const {
  // An exchanging rank may read for every other: the whole plan counts, messages too.
  CellRange cells = cells_of_rank(plan_.plan, comm_.rank(), comm_.size());
  if (exchanging()) cells = {0, plan_.plan.cells.size()};
  std::uint64_t factor = exchanging() ? 3 : 1;
  factor *= static_cast<std::uint64_t>(std::ceil(growth()));
  return staging_arena_bytes(plan_.plan, cells, spec_.run.memory_bytes, factor);
}

/// Of all ranks together; where bytes are exchanged every rank takes part in all of them.
std::uint64_t PlannedJob::count_rounds() const {
  if (exchanging()) return exchange_rounds().count();
  std::uint64_t rounds = 0;
  RankCells const parts(plan_.plan, comm_.size());
  for (int r = 0; r < comm_.size(); ++r) {
    CellRange cells = parts.of(r);
    for (; cells.begin < cells.end; ++rounds)
      cells.begin = round_end(plan_.plan, cells, round_bytes());
  }
  return rounds;
}

ExchangeRounds PlannedJob::exchange_rounds() const {
  std::vector<int> readers =
      balanced_readers(plan_.plan, source_.files.size() + plan_.source.views.size(), comm_.size());
  return {plan_.plan, std::move(readers), comm_.rank(), comm_.size(), exchange_round_bytes()};
}

RoundSource PlannedJob::rounds() const {
  if (!exchanging())
    return direct_rounds(plan_.plan, cells_of_rank(plan_.plan, comm_.rank(), comm_.size()),
                         round_bytes());
  auto exchange = std::make_shared<ExchangeRounds>(exchange_rounds());
  return [exchange] { return exchange->next(); };
}

std::uint64_t PlannedJob::exchange_round_bytes() const {
  return static_cast<std::uint64_t>(
      static_cast<double>(on_device() ? round_memory() : spec_.run.memory_bytes) / 4 / growth());
}

std::uint64_t PlannedJob::target_bytes_of(CellRange cells) const {
  std::uint64_t bytes = 0;
  for (std::size_t i = cells.begin; i < cells.end; ++i) bytes += plan_.plan.cells[i].target_bytes;
  return bytes;
}

}  // namespace reshard
