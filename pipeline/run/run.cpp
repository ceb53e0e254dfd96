#include "pipeline/run/run.hpp"

#include <chrono>
#include <filesystem>
#include <memory>
#include <utility>

#include "core/base/capture.hpp"
#include "core/base/files/tree.hpp"
#include "core/base/threads/activity.hpp"
#include "core/transport/monitor/heartbeat.hpp"
#include "pipeline/job/job_paths.hpp"
#include "pipeline/run/checks/compare_replicas.hpp"
#include "pipeline/run/guarded.hpp"
#include "pipeline/run/job_choices.hpp"
#include "pipeline/run/path/opened_path.hpp"
#include "pipeline/run/path/rank_loads.hpp"
#include "pipeline/run/planned_job.hpp"
#include "pipeline/run/report/report_parts.hpp"
#include "pipeline/run/written_job.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

/// The watchers of a run, from before its first phase until all ranks have ended.
struct Watch {
  Watch(JobSpec const& spec, RunContext const& context, Comm const& comm)
      : heartbeat(comm, spec.run.stall_seconds),
        progress({context.progress, static_cast<double>(spec.run.progress_seconds), context.stop,
                  context.events}) {}
  Clock::time_point begin = Clock::now();
  Heartbeat heartbeat;
  Progress progress;
};

DiskSpace space_of(RunReport const& report) {
  return {report.figures.count("plan.target_bytes"), report.figures.count("plan.free_bytes")};
}

RunReport first_report(JobRun const& run, PlannedJob const& job) {
  RunReport report;
  together(run.comm, [&] { report = report_of_plan(run.spec, job, run.comm); });
  return report;
}

/// Refuses as claim_target() would. Collective.
void look_at_target(JobRun const& run, PlannedJob const& job, RunReport const& report) {
  together(run.comm, [&] {
    if (run.comm.rank() != 0) return;
    check_target(run.spec, job.source, job.plan, space_of(report));
    look_at_place(run.spec.target.path, existing_target(run.spec));
  });
}

/// The interrupted run that claim_target() would find. Collective.
std::optional<InterruptedRun> look_for_interrupted(JobRun const& run, PlannedJob const& job) {
  InterruptedRun found = find_interrupted_run(
      {run.spec, job.source, job.plan, job.identity, job.previous, run.comm}, run.context.fresh,
      is_by_library(run.spec) ? Journaled::no : Journaled::yes);
  if (found.staging.empty()) return std::nullopt;
  return found;
}

void tell_plan(JobRun const& run, RunReport report) {
  report.planned_only = true;
  run.progress.event("plan", Json().set("report", report_json(report)));
}

/// Neither source nor target may suffer from a trace. Rank 0's; null where none is taken.
std::unique_ptr<TraceFile> open_trace(JobRun const& run, PlannedJob const& job) {
  std::unique_ptr<TraceFile> file;
  auto const& path = run.context.trace_file;
  if (!path) return file;
  together(run.comm, [&] {
    if (run.comm.rank() != 0) return;
    check_outside_job(*path, "--trace", run.spec,
                      std::vector<std::filesystem::path>(job.source.files));
    file = std::make_unique<TraceFile>(*path);
  });
  return file;
}

/// The target is complete by now: a trace that cannot be kept is worth a warning.
void keep_trace(JobRun const& run, Trace const& trace, TraceFile* file, RunReport& report) {
  if (!run.context.trace_file) return;
  auto const error = capture([&] { write_trace(run.comm, trace, file); });
  if (error) report.warnings.push_back(error->sentence());
}

/// Opens the way of the bytes; it may turn out to be another one than was planned.
std::unique_ptr<GpuPath> open_devices(JobRun const& run, PlannedJob& job, RunReport& report) {
  OpenedPath opened = open_path(run.spec, job, run.comm);
  if (opened.gpu) report.figures.set("run.device_name", opened.gpu->device_name());
  if (opened.warning.empty()) return std::move(opened.gpu);
  job.path = opened.path;
  report.warnings.push_back(opened.warning);
  together(run.comm, [&] { set_path(report, job.path, round_terms(run.spec, job, run.comm)); });
  return nullptr;
}

/// Takes the target, fills and publishes it.
WrittenJob make_target(JobRun const& run, PlannedJob& job, SourceWatch const& watch, GpuPath* gpu,
                       Trace* trace, RunReport& report) {
  begin_phase("preparing the target");
  ClaimedTarget claimed =
      claim_target({run.spec, job.source, job.plan, job.identity, job.previous, run.comm},
                   {.space = space_of(report),
                    .fresh = run.context.fresh,
                    .journaled = is_by_library(run.spec) ? Journaled::no : Journaled::yes,
                    .source_record = run.context.source_record,
                    .described_by = job.described_by});
  for (std::string const& warning : claimed.warnings) report.warnings.push_back(warning);
  WrittenJob written;
  end_together(run.comm, [&] {
    written = claimed.earlier == EarlierTarget::whole
                  ? only_publish(run, job, watch, claimed)
                  : write_job(run, job, watch, claimed, gpu, trace);
  });
  return written;
}

RunReport carry_out(JobRun const& run, bool hears_others) {
  Comm const& comm = run.comm;
  KnownListings const known;
  PlannedJob job = plan_job(run.spec, run.context.library, comm.size(), comm);
  RunReport report = first_report(run, job);
  if (comm.size() > 1 && !hears_others)
    report.warnings.push_back(
        "this MPI provides less than MPI_THREAD_MULTIPLE: a rank whose host is lost would not be "
        "detected");
  tell_plan(run, report);
  together(comm, [&] { check_stop(run, "before anything was written"); });
  SourceWatch const watch(job.source, job.described_by);
  report.figures.set("run.replicas_compared", compare_replicas(run.spec, job, watch, comm));
  RowsBehind behind = look_at_padding_left_out(job, watch, comm);
  for (std::string& text : behind.warnings) report.warnings.push_back(std::move(text));
  report.trained_padding = std::move(behind.notes);
  std::unique_ptr<TraceFile> const trace_file = open_trace(run, job);
  Trace trace;
  std::unique_ptr<GpuPath> const gpu = open_devices(run, job, report);
  WrittenJob written;
  end_together(comm, [&] {
    written =
        make_target(run, job, watch, gpu.get(), run.context.trace_file ? &trace : nullptr, report);
  });
  add_written(report, run, written);
  keep_trace(run, trace, trace_file.get(), report);
  return report;
}

}  // namespace

RunReport run(JobSpec const& job, RunContext const& context, Comm const& comm) {
  Watch watch(job, context, comm);
  JobRun const run{job, context, comm, watch.progress, watch.begin};
  RunReport report;
  end_together(comm, [&] { report = carry_out(run, watch.heartbeat.hears_others()); });
  return report;
}

namespace {

/// A typing mistake in target.path makes folders.
void warn_of_new_folder(RunReport& report) {
  std::filesystem::path const folder = absolute_target(report.job.target.path).parent_path();
  std::error_code unknown;
  if (!std::filesystem::exists(folder, unknown) && !unknown)
    report.warnings.push_back(
        fmt::format("target.path: there is no folder {}. A run creates it", folder.string()));
}

}  // namespace

RunReport plan_only(JobSpec const& job, RunContext const& context, Comm const& comm) {
  Watch watch(job, context, comm);
  JobRun const run{job, context, comm, watch.progress, watch.begin};
  PlannedJob planned;
  RunReport report;
  end_together(comm, [&] {
    planned = plan_job(job, context.library, context.ranks, comm);
    report = first_report(run, planned);
    report.per_rank = rank_loads(round_terms(job, planned, comm));
  });
  report.figures.set("plan.staging_bytes_per_rank", report.per_rank->staging_bytes.most);
  report.planned_only = true;
  warn_of_new_folder(report);
  report.refusal = capture([&] { look_at_target(run, planned, report); });
  std::error_code unknown;
  report.replaces = !report.refusal && std::filesystem::exists(job.target.path, unknown);
  if (!report.refusal)
    end_together(comm, [&] { report.interrupted = look_for_interrupted(run, planned); });
  return report;
}

}  // namespace reshard
