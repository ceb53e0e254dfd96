#include "pipeline/run/report_parts.hpp"

#include <array>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/base/counted.hpp"
#include "core/base/paths.hpp"
#include "core/containers/saves.hpp"
#include "pipeline/run/job_choices.hpp"
#include "pipeline/run/system_facts.hpp"

namespace reshard {
namespace {

void set_counts(RunReport& report, RoundCounts const& counts) {
  report.staging_bytes = counts.arena_bytes;
  report.rounds = counts.rounds;
}

/// Sums and means over the ranks.
class OverRanks {
 public:
  explicit OverRanks(Comm const& comm) : comm_(comm) {}

  std::uint64_t total(std::uint64_t mine) const {
    return static_cast<std::uint64_t>(comm_.sum(static_cast<std::int64_t>(mine)));
  }
  std::uint64_t most(std::uint64_t mine) const {
    return static_cast<std::uint64_t>(comm_.max(static_cast<std::int64_t>(mine)));
  }
  StageReport stage(std::uint64_t bytes, StageTime const& time) const {
    return {total(bytes), mean(time.busy_seconds), mean(time.stall_seconds)};
  }

 private:
  double mean(double seconds) const {
    return static_cast<double>(comm_.sum(static_cast<std::int64_t>(seconds * 1e9))) / 1e9 /
           comm_.size();
  }
  Comm const& comm_;
};

/// Where some rank could not read or write as the job asks.
void add_io_warnings(RunReport& report, JobRun const& run, WrittenJob const& written) {
  if (run.spec.run.io <= IoChoice::posix) return;  // a trial sees what is refused
  std::array<std::pair<std::string_view, std::string const&>, 2> const ways = {
      {{"read", written.read_fallback}, {"written", written.write_fallback}}};
  for (auto const& [done, mine] : ways)
    for (std::string const& reason : run.comm.all_gather(mine)) {
      if (reason.empty()) continue;
      report.warnings.push_back(
          fmt::format("[run] io = \"{}\": {}. Such files were {} through the page cache.",
                      name(run.spec.run.io), reason, done));
      break;
    }
}

Json rates_of(IoTrial const& trial) {
  Json rates;
  for (EngineRate const& rate : trial.rates)
    rates.set(std::string(rate.engine), static_cast<std::int64_t>(rate.bytes_per_second));
  return rates;
}

/// Of an earlier run that had written everything there is nothing to say.
Json io_of(ChosenIo const& io) {
  if (io.read.empty()) return {};
  Json used;
  used.set("read", std::string(io.read)).set("write", std::string(io.write));
  if (!io.read_trial.chosen.empty())
    used.set("source_cached_percent",
             static_cast<std::int64_t>(std::lround(100 * io.read_trial.cached_share)));
  if (!io.read_trial.rates.empty()) used.set("read_trial", rates_of(io.read_trial));
  if (!io.write_trial.rates.empty()) used.set("write_trial", rates_of(io.write_trial));
  return used;
}

void add_streamed(RunReport& report, StreamedJob const& streamed, OverRanks const& over) {
  StreamStats const& stats = streamed.stats;
  report.bytes_read = over.total(stats.bytes_read);
  report.bytes_written = over.total(stats.bytes_written);
  report.bytes_exchanged = over.total(stats.bytes_sent);
  report.bytes_copied = over.total(stats.bytes_copied);
  report.bytes_uploaded = over.total(stats.bytes_uploaded);
  report.bytes_downloaded = over.total(stats.bytes_downloaded);
  report.device_memory_bytes = over.most(stats.device_high_water_bytes);
  report.read_calls = over.total(stats.read_calls);
  report.write_calls = over.total(stats.write_calls);
  report.bytes_cloned = over.total(stats.bytes_cloned);
  report.clone_calls = over.total(stats.clone_calls);
  report.cells_handed_out = over.total(streamed.cells_of_others);
  report.bytes_handed_out = over.total(streamed.bytes_of_others);
  report.write_mode = streamed.write_mode;
  report.read = over.stage(stats.bytes_read, stats.read);
  report.exchange = over.stage(stats.bytes_copied + stats.bytes_sent, stats.exchange);
  report.write = over.stage(stats.bytes_written, stats.write);
  report.stream_seconds = streamed.seconds;
}

}  // namespace

void set_path(RunReport& report, PathChoice const& path, RoundTerms const& terms) {
  report.transport = !terms.exchanging                         ? "direct"
                     : path.transport == TransportChoice::nccl ? "nccl"
                                                               : "mpi";
  report.device = path.device == DeviceChoice::host   ? "host"
                  : path.device == DeviceChoice::cuda ? "cuda"
                                                      : "emulated";
  report.path_reason = path.why;
  set_counts(report, counts_of(terms));
}

namespace {

void set_states(RunReport& report, JobPlan const& plan) {
  Model const& model = *plan.model;
  report.states.assign(model.slots().begin() + 1, model.slots().end());
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    auto const blobs = plan.source.tensors[t].blobs();
    if (model.tensors()[t].slot == SlotId::weight || !model.exists(TensorId(t)) || blobs.empty())
      continue;
    report.state_bytes += static_cast<std::uint64_t>(model.volume(model.tensors()[t])) *
                          static_cast<std::uint64_t>(bits(plan.source.blobs[blobs.front()].dtype)) /
                          8;
  }
}

}  // namespace

namespace {

/// The save that source.path led to: below it, or behind a link that has no step in its name.
std::string taken_save(std::filesystem::path const& path, std::filesystem::path const& folder) {
  if (std::string below = save_below(path, folder); !below.empty()) return below;
  if (step_of_folder(normal_path(path).filename().string())) return "";
  std::error_code error;
  std::string const leads = std::filesystem::canonical(path, error).filename().string();
  bool const is_link = !error && leads != normal_path(path).filename().string();
  return is_link && step_of_folder(leads) ? leads : "";
}

}  // namespace

RunReport report_of_plan(JobSpec const& spec, PlannedJob const& job, Comm const& comm) {
  RunReport report;
  report.job = spec;
  report.ranks = job.ranks;
  report.source_format = job.source.format->name();
  report.source_save = taken_save(spec.source.path, job.source.folder);
  report.source_layout = job.source.summary;
  if (Json const* const modules = job.plan.merged_adapter.find("modules"); modules != nullptr)
    report.source_layout += fmt::format(
        " · {} of {} merged", counted(*modules->integer(), "module"), spec.source.adapter);
  report.map = job.plan.map_name;
  report.parts = job.plan.parts;
  report.warnings = job.plan.warnings;
  report.logical_tensors = job.plan.plan.logical_tensors;
  set_states(report, job.plan);
  report.source_files = job.source.files.size();
  report.source_tensors = job.plan.source.blobs.size();
  report.replicas_not_read = job.plan.plan.replicas_dropped;
  report.left_out = job.plan.left_out;
  report.target_files = job.plan.files.size();
  report.target_tensors = job.plan.target.blobs.size();
  report.regions = job.plan.plan.joined_regions;
  report.payload_read = job.plan.plan.source_bytes;
  report.payload_written = job.plan.plan.target_bytes;
  report.target_bytes = target_file_bytes(job.plan);
  report.free_bytes = free_bytes_at(spec.target.path);
  report.since_refused = job.previous.why_not;
  report.since_files = job.previous.usable_files;
  report.since_bytes = job.previous.usable_bytes;
  TakenTensors const& taken = job.previous.taken;
  for (std::size_t t = 0; t < taken.tensors.size(); ++t)
    if (taken.tensors[t]) report.since_unread_bytes += job.plan.plan.tensor_bytes[t];
  if (!report.since_refused.empty())
    report.warnings.push_back(fmt::format("target.since: {}: {}. Everything is written.",
                                          spec.target.since, report.since_refused));
  set_path(report, job.path, round_terms(spec, job, comm));
  report.header_seconds = job.header_seconds;
  report.plan_seconds = job.plan_seconds;
  report.planned_memory_bytes = job.resident_bytes;
  return report;
}

void add_written(RunReport& report, JobRun const& run, WrittenJob const& written) {
  OverRanks const over(run.comm);
  CommittedJob const& committed = written.committed;
  if (!committed.left_behind.empty()) report.warnings.push_back(committed.left_behind);
  add_io_warnings(report, run, written);
  report.io = io_of(written.io);
  if (!written.streamed.suspicious.empty()) report.warnings.push_back(written.streamed.suspicious);
  report.earlier_runs = written.earlier_runs;
  report.bytes_reused = written.bytes_reused;
  if (written.rounds_left) set_counts(report, *written.rounds_left);
  add_streamed(report, written.streamed, over);
  if (is_exchanging(run.spec, run.comm.size())) report.rounds = written.streamed.stats.rounds;
  report.digests_compared = committed.digests_compared;
  report.records_compared = committed.records_compared;
  report.masters_compared = committed.states.masters;
  report.moments_compared = committed.states.moments;
  report.bytes_verified = committed.verified.bytes_read;
  report.bytes_verified_early = committed.verified.bytes_early;
  report.bytes_shared = committed.verified.bytes_shared;
  report.files_reused = committed.verified.reused.whole_files;
  report.file_bytes_reused = committed.verified.reused.whole_bytes;
  report.bytes_kept = committed.verified.reused.kept_bytes;
  report.bytes_filled = committed.verified.reused.copied_bytes;
  report.reused_verified = committed.verified.oldest_verified;
  report.tensors_changed = committed.verified.tensors_changed;
  report.changed_tensors = committed.verified.changed_tensors;
  report.total_digest = committed.verified.total;
  report.verify_seconds = committed.verify_seconds;
  report.self_check = committed.self_check;
  report.self_check_seconds = committed.self_check_seconds;
  if (report.self_check && !report.self_check->why_not.empty())
    report.warnings.push_back("run.self_check: " + self_check_summary(*report.self_check));
  report.commit_seconds = committed.commit_seconds;
  report.peak_memory_bytes = over.most(peak_resident_bytes());
  report.total_seconds = seconds_since(run.begin);
}

}  // namespace reshard
