#include "pipeline/run/report/report_parts.hpp"

#include <array>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/base/files/paths.hpp"
#include "core/base/tables/counted.hpp"
#include "core/containers/saves.hpp"
#include "pipeline/run/job_choices.hpp"
#include "pipeline/run/report/report_figures.hpp"

namespace reshard {
namespace {

void set_counts(RunReport& report, RoundCounts const& counts) {
  report.figures.set("plan.staging_bytes_per_rank", counts.arena_bytes);
  report.figures.set("plan.rounds", counts.rounds);
}

/// Of all ranks: bytes are added up, seconds are the mean.
StageReport over_ranks(std::uint64_t bytes, StageTime const& time, Comm const& comm) {
  auto const mean = [&](double seconds) {
    return static_cast<double>(comm.sum(static_cast<std::int64_t>(seconds * 1e9))) / 1e9 /
           comm.size();
  };
  auto const total = static_cast<std::uint64_t>(comm.sum(static_cast<std::int64_t>(bytes)));
  double const busy = mean(time.busy_seconds);
  return {total, busy, mean(time.stall_seconds)};
}

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

}  // namespace

void set_path(RunReport& report, PathChoice const& path, RoundTerms const& terms) {
  Figures& figures = report.figures;
  figures.set("plan.transport", !terms.exchanging                         ? "direct"
                                : path.transport == TransportChoice::nccl ? "nccl"
                                                                          : "mpi");
  figures.set("plan.device", path.device == DeviceChoice::host   ? "host"
                             : path.device == DeviceChoice::cuda ? "cuda"
                                                                 : "emulated");
  figures.set("plan.device_reason", path.why);
  set_counts(report, counts_of(terms));
}

namespace {

void set_states(Figures& figures, JobPlan const& plan) {
  Model const& model = *plan.model;
  std::uint64_t bytes = 0;
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    auto const blobs = plan.source.tensors[t].blobs();
    if (model.tensors()[t].slot == SlotId::weight || !model.exists(TensorId(t)) || blobs.empty())
      continue;
    bytes += static_cast<std::uint64_t>(model.volume(model.tensors()[t])) *
             static_cast<std::uint64_t>(bits(plan.source.blobs[blobs.front()].dtype)) / 8;
  }
  figures.set("plan.state_bytes", bytes);
  figures.set("plan.states", Json(Json::Array(model.slots().begin() + 1, model.slots().end())));
}

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
  report.warnings = job.plan.warnings;
  report.left_out = job.plan.absent.left_out;
  if (job.plan.dtypes.cast) report.dtype_changes = job.plan.dtypes.changes;
  std::ranges::move(job.plan.dtypes.quantised.list(), std::back_inserter(report.dtype_changes));
  set_planned(report.figures, spec, job);
  if (std::string save = taken_save(spec.source.path, job.source.folder); !save.empty())
    report.figures.set("source.save", std::move(save));
  set_states(report.figures, job.plan);
  if (std::string const& why = job.previous.why_not; !why.empty())
    report.warnings.push_back(fmt::format("target.incremental_from: {}: {}. Everything is written.",
                                          spec.target.incremental_from, why));
  set_path(report, job.path, round_terms(spec, job, comm));
  return report;
}

void add_written(RunReport& report, JobRun const& run, WrittenJob const& written) {
  CommittedJob const& committed = written.committed;
  StreamStats const& stats = written.streamed.stats;
  if (!committed.left_behind.empty()) report.warnings.push_back(committed.left_behind);
  add_io_warnings(report, run, written);
  if (!written.streamed.suspicious.empty()) report.warnings.push_back(written.streamed.suspicious);
  set_written(report.figures, written, run.comm);
  report.stages = {over_ranks(stats.bytes_read, stats.read, run.comm),
                   over_ranks(stats.bytes_copied + stats.bytes_sent, stats.exchange, run.comm),
                   over_ranks(stats.bytes_written, stats.write, run.comm)};
  if (written.rounds_left) set_counts(report, *written.rounds_left);
  if (is_exchanging(run.spec, run.comm.size())) report.figures.set("plan.rounds", stats.rounds);
  report.figures.set("run.io", io_of(written.io));
  report.self_check = committed.self_check;
  if (report.self_check && !report.self_check->why_not.empty())
    report.warnings.push_back("run.self_check: " + self_check_summary(*report.self_check));
  report.figures.set("run.seconds.total", seconds_since(run.begin));
}

}  // namespace reshard
