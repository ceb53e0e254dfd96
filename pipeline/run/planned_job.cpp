#include "pipeline/run/planned_job.hpp"

#include <algorithm>
#include <chrono>
#include <string>

#include "core/base/capture.hpp"
#include "core/base/files/listed_folders.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/heap.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/text/text.hpp"
#include "core/base/threads/activity.hpp"
#include "core/io/direct_io.hpp"
#include "core/io/io_engines.hpp"
#include "core/io/shared_extents.hpp"
#include "core/plan/cells/round_sizes.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/job/plan_request.hpp"
#include "pipeline/records/own_manifest.hpp"
#include "pipeline/records/record_sums.hpp"
#include "pipeline/records/source_manifest.hpp"
#include "pipeline/run/agreement.hpp"
#include "pipeline/run/checks/same_files.hpp"
#include "pipeline/run/job_choices.hpp"
#include "pipeline/run/path/gpu_path.hpp"
#include "pipeline/run/run_context.hpp"
#include "pipeline/run/system_facts.hpp"
#include "pipeline/verify/checkpoint_query.hpp"
#include "pipeline/verify/verify_one.hpp"
#include "stages/read/look_at_objects.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

void check_source_files(JobSpec const& spec, Checkpoint const& source, Comm const& comm) {
  std::vector<std::string> const faults = file_faults(spec.source.path, source, comm);
  if (!faults.empty())
    fail(
        ErrorKind::source,
        "{}: the files are not what was recorded when they were written: {}. Restore them from a copy.",
        spec.source.path, listed(faults, 8));
}

Checkpoint read_source(JobSpec const& spec, MapLibrary const& library, Comm const& comm) {
  begin_phase("reading headers");
  Checkpoint source = open_source(spec.source.path, spec.source.format, open_choice(spec), comm);
  if (spec.source.verify == SourceVerify::files) check_source_files(spec, source, comm);
  settle_adapter(source, wrapped_choice(spec), comm);
  for (std::string const& path : spec.source.average)
    add_averaged(source, path, spec.source.format, open_choice(spec), comm);
  add_inputs(source, spec.target.changes, library, comm);
  if (spec.source.objects == SourceObjects::look && format_of(spec.target.format).target().objects)
    look_at_objects(source, comm);
  return source;
}

/// A trial may choose another one before the first byte of a tensor is read (choose_io).
std::unique_ptr<FileIo> first_io(JobSpec const& spec) {
  return spec.run.io == IoChoice::automatic ? io_engines().front().make()
                                            : make_file_io(name(spec.run.io));
}

/// Where a trial may choose any engine, the plan is one for all of them, so that another choice can
/// resume it.
std::uint64_t memory_alignment(JobSpec const& spec, PlannedJob const& job) {
  bool const open = spec.run.io == IoChoice::automatic &&
                    source_file_bytes(job.source) >= IoTrialTerms().least_job_bytes;
  return open ? direct_block_bytes : job.source_io->alignment().memory_bytes;
}

PlanLimits plan_limits(JobSpec const& spec, PlannedJob const& job) {
  PlanLimits limits = limits_for(round_memory(spec), is_exchanging(spec, job.ranks) ? 10 : 4);
  limits.threads = job.threads;
  limits.digests = spec.run.verify != VerifyChoice::off;
  limits.alignment.io_bytes = memory_alignment(spec, job);
  return limits;
}

/// 0 where the target is not to share extents, or cannot.
std::uint64_t clone_block(JobSpec const& spec) {
  if (spec.target.reflink == ReflinkChoice::never) return 0;
  // It is written beside the target.
  std::string const found = seen("clone block", spec.target.path, [&] {
    return std::to_string(clone_block_at(full_path(spec.target.path).parent_path()).value_or(0));
  });
  return std::stoull(found);
}

/// Lays the target out for clones where it may have some.
void set_data_layout(JobSpec const& spec, PlannedJob& job, PlanRequest& request) {
  job.clone_block_bytes = clone_block(spec);
  bool const unasked =
      job.clone_block_bytes == 0 || format_of(spec.target.format).target().published;
  if (unasked && spec.target.reflink != ReflinkChoice::always) return;
  request.target.data_layout = DataLayout::for_clones;
  job.limits.cut_bytes = clone_block_bytes;
}

/// A rank clones what it would read and write itself.
void set_clones(JobSpec const& spec, PlannedJob& job) {
  bool const direct = !is_exchanging(spec, job.ranks) && !is_by_library(spec) &&
                      job.path.device == DeviceChoice::host;
  if (job.clone_block_bytes > 0 && direct)
    job.plan.plan.clones = {std::max(job.clone_block_bytes, clone_block_bytes),
                            narrow<std::uint32_t>(job.source.files.size())};
}

std::vector<SummedBytes> known_sums(Checkpoint const& source) {
  std::vector<SummedBytes> sums;
  for (StoredRecord const& record : source.records)
    if (record.crc32)
      sums.push_back({record.file, record.offset_bytes, record.size_bytes, *record.crc32});
  return sums;
}

std::vector<FileSpan> wanted_sums(JobPlan const& plan) {
  std::vector<FileSpan> wanted;
  for (std::uint32_t f = 0; f < plan.files.size(); ++f)
    for (SummedRecord const& record : plan.files[f].frame->records())
      wanted.push_back({f, record.offset_bytes, record.offset_bytes + record.size_bytes});
  return wanted;
}

/// Digests of tensors in the source's record; nothing where its SHA256SUMS is of another record.
std::vector<std::optional<std::uint64_t>> believed_digests(JobSpec const& spec,
                                                           PlannedJob const& job) {
  auto digests = fresh_digests(*job.manifest, job.source, job.plan);
  bool const any = std::ranges::any_of(digests, [](auto const& one) { return one.has_value(); });
  if (any && is_record_contradicted(spec.source.path)) digests.assign(digests.size(), std::nullopt);
  return digests;
}

/// Leaves cloned bytes unread where the source's own record has their digests. With verify =
/// "streamed" the record would be the only proof, if a clone is refused.
void leave_recorded_unread(JobSpec const& spec, PlannedJob& job) {
  if (job.plan.plan.clones.block_bytes == 0 || !job.manifest ||
      spec.run.verify != VerifyChoice::written || spec.source.verify != SourceVerify::automatic)
    return;
  auto const digests = believed_digests(spec, job);
  UnreadTerms terms{{}, known_sums(job.source), wanted_sums(job.plan)};
  for (auto const& digest : digests) terms.recorded.push_back(digest.has_value());
  if (std::ranges::none_of(digests, [](auto const& digest) { return digest.has_value(); })) return;
  job.plan.unread = leave_unread(job.plan.plan, terms);
  job.plan.recorded.assign(digests.size(), 0);
  for (std::size_t t = 0; t < digests.size(); ++t)
    if (digests[t]) job.plan.recorded[t] = *digests[t];
}

PathLoad load_of_busiest(PlannedJob const& job) {
  PathLoad busiest;
  RankCells const cells(job.plan.plan, job.ranks);
  auto const first_view = static_cast<std::uint32_t>(job.source.files.size());
  for (int r = 0; r < job.ranks; ++r) {
    PathLoad const load = load_of(job.plan.plan, cells.of(r), job.plan.source.views, first_view);
    if (load.host_copy_seconds + load.host_compute_seconds >=
        busiest.host_copy_seconds + busiest.host_compute_seconds)
      busiest = load;
  }
  return busiest;
}

void choose_path_of_bytes(JobSpec const& spec, PlannedJob& job, Comm const& comm) {
  PathLoad const busiest = load_of_busiest(job);
  bool const asks_for_gpu =
      spec.run.device == DeviceChoice::cuda || spec.run.transport == TransportChoice::nccl;
  bool const may_help = spec.run.device == DeviceChoice::automatic && !reason_against_gpus(busiest);
  job.devices = asks_for_gpu || may_help
                    ? find_devices(comm)
                    : std::vector<RankDevices>(static_cast<std::size_t>(comm.size()));
  together(comm, [&] { job.path = choose_path(spec.run, job.devices, busiest); });
}

/// The record of the source, which counts its vocabulary and has the digests of its tensors.
struct SourceRecord {
  std::optional<Manifest> manifest;
  std::optional<Error> fault;  ///< of files that are not those of the record
  std::vector<std::string> warnings;
};

SourceRecord record_of_source(JobSpec const& spec, Checkpoint const& source) {
  SourceRecord record;
  record.fault =
      capture([&] { record.manifest = manifest_of(spec.source.path, source, record.warnings); });
  return record;
}

void plan_from_headers(JobSpec const& spec, MapLibrary const& library, PlannedJob& job,
                       Comm const& comm) {
  begin_phase("planning");
  job.limits = plan_limits(spec, job);
  together_seeing(comm, [&] {
    PlanRequest request = plan_request(spec, library);
    set_data_layout(spec, job, request);
    bool const digests = job.limits.digests && spec.source.verify != SourceVerify::off;
    SourceRecord record;
    if (digests || job.source.names == NameOwner::megatron)
      record = record_of_source(spec, job.source);
    if (record.manifest && job.source.names == NameOwner::megatron)
      job.source.logical.vocab = vocab_in(*record.manifest);
    job.plan =
        make_job_plan(job.source, request, job.limits, [&job] { job.source.forget_tensors(); });
    check_files(spec, job.plan);
    if (!digests) return;
    if (record.fault) throw *record.fault;
    job.manifest = std::move(record.manifest);
    std::ranges::move(record.warnings, std::back_inserter(job.plan.warnings));
  });
  choose_path_of_bytes(spec, job, comm);
  set_clones(spec, job);
  together_seeing(comm, [&] { leave_recorded_unread(spec, job); });
}

/// Nothing is written before every rank has planned the same job from the same source.
void agree_on_plan(JobSpec const& spec, PlannedJob& job, Comm const& comm) {
  program_digest();  // of this rank's own
  together_seeing(
      comm, [&] { job.identity = identity_of(spec, job.source, job.plan, job.described_by); });
  job.identity.previous = job.previous.fingerprint();
  check_same_identity(comm, job.identity);
  job.sources = std::make_unique<FileSet>(job.source.files, FileSet::Access::read,
                                          FileSet::usual_open_limit(), job.source_io);
  RoundTerms terms = round_terms(spec, job, comm);
  terms.ranks = comm.size();
  check_same_files(job.source, *job.sources, terms, comm);
}

}  // namespace

PlannedJob plan_job(JobSpec const& spec, MapLibrary const& library, int ranks, Comm const& comm) {
  ListedFolders const listed(spec.source.path);
  PlannedJob job;
  job.ranks = ranks > 0 ? ranks : comm.size();
  job.source_io = first_io(spec);
  together(comm, [&] { check_choices(spec, job.ranks); });
  job.threads = threads_of(spec, comm);
  {
    OpenedFiles const opened;
    Clock::time_point const reading = Clock::now();
    job.source = read_source(spec, library, comm);
    return_free_memory();
    job.header_seconds = seconds_since(reading);
    Clock::time_point const planning = Clock::now();
    plan_from_headers(spec, library, job, comm);
    job.plan_seconds = seconds_since(planning);
    if (comm.rank() == 0) job.described_by = opened.stamps();
    for (fs::path const& file : job.source.files) job.described_by.erase(file);
  }
  together_seeing(comm, [&] {
    job.previous = find_previous(spec, job.plan, job.clone_block_bytes);
    leave_source_unlinked(job.previous, job.plan, job.source.stamps.taken);
    if (job.previous.is_usable() && job.manifest && spec.source.verify == SourceVerify::automatic)
      take_recorded(job.previous, job.plan, believed_digests(spec, job));
  });
  agree_on_plan(spec, job, comm);
  job.resident_bytes = peak_resident_bytes();
  return job;
}

std::uint64_t source_file_bytes(Checkpoint const& source) {
  std::uint64_t bytes = 0;
  for (FileStamp const& stamp : source.stamps.taken)
    bytes += static_cast<std::uint64_t>(stamp.bytes);
  return bytes;
}

std::uint64_t target_file_bytes(JobPlan const& plan) {
  std::uint64_t bytes = 0;
  for (TargetFile const& file : plan.files) bytes += file.size_bytes;
  return bytes;
}

RoundTerms round_terms(JobSpec const& spec, PlannedJob const& job, Comm const& comm) {
  return {.plan = job.plan.plan,
          .views = job.plan.source.views,
          .source_files = job.source.files.size(),
          .memory_bytes = spec.run.memory_bytes,
          .round_memory_bytes = round_memory(spec),
          .most_staging_bytes = job.limits.staging_bytes,
          .exchanging = is_exchanging(spec, job.ranks),
          .on_device = job.path.device != DeviceChoice::host,
          .handing_out =
              spec.run.work_stealing == WorkStealingChoice::automatic && !is_by_library(spec),
          .rank = comm.rank(),
          .ranks = job.ranks};
}

}  // namespace reshard
