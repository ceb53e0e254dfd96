#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/mapping/maps/map_library.hpp"
#include "pipeline/cli/command.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/run/run.hpp"

namespace reshard {

// Shared by `run`, `plan` and `nightly`.

/// Of --ranks.
constexpr int most_planned_ranks = 1'000'000;

struct JobOptions {
  std::string job_file;
  std::vector<std::string> overrides;
  std::optional<std::string> trace_file = std::nullopt;
  std::optional<std::string> events_file = std::nullopt;
  ProgressStyle progress = ProgressStyle::automatic;
  int ranks = 0;         ///< `plan`: for how many; 0: those that plan
  bool dry_run = false;  ///< `plan`, or `run --dry-run`
  bool fresh = false;
  bool quiet = false;
  bool verbose = false;
  bool json = false;

  /// Whether the report is not to be seen on stdout: other things are, or nothing is.
  bool keeps_report() const { return (quiet && !json) || events_file == "-"; }
  ReportDetail detail() const { return verbose ? ReportDetail::full : ReportDetail::brief; }
};

/// A command with a job file.
struct JobTexts {
  char const* name;
  char const* text;
  char const* examples;
};
CLI::App* add_job_options(CLI::App& app, JobTexts const& texts, JobOptions& options,
                          bool may_dry_run);

/// The options of commands that convert, besides those that say what: --set, --device and the like,
/// and with `may_write` how a run shows what it does.
void add_running_options(CLI::App& sub, JobOptions& options, bool may_write = true);

/// The job file with its overrides, as rank 0 reads it ("-": its standard input); the maps say
/// which further parallel axes a layout may name. Collective; mistakes are Errors of kind usage.
JobSpec read_job(std::string const& file, std::vector<std::string> const& overrides, JobUse use,
                 MapLibrary const& library, Comm const& comm);

/// --source of commands that read a checkpoint.
void add_source_job(CLI::App& command, std::string& into);
/// Why it stands alone.
inline constexpr char const* source_job_alone =
    "--source says how the checkpoint is read: set the keys of --map, --config and --prefix in that "
    "file, or leave --source out.";
/// The job file, of which [source] and [model] count. Collective. Errors of kind usage.
std::shared_ptr<JobSpec const> read_source_job(std::string const& file, MapLibrary const& library,
                                               Comm const& comm);

/// On rank 0, when the options name a file for events; collective.
std::unique_ptr<EventFile> open_events(JobOptions const& options, JobSpec const& job,
                                       Comm const& comm);

/// How its phases are shown.
PhaseLine::Style phases_of(JobOptions const& options);

/// Runs or plans. Collective. `source_record` goes into the target's manifest; `events` may be
/// null. The result is not reported there yet.
RunReport carry_out(JobOptions const& options, JobSpec const& job, Json const& source_record,
                    EventFile* events, Surroundings const& surroundings, Comm const& comm);

/// carry_out() with events and the report: the exit code. Collective.
int run_job(JobOptions const& options, JobSpec const& job, Surroundings const& surroundings,
            Comm const& comm);

/// Does the work and reports a failure as an event.
void with_result(EventFile* events, std::function<void()> const& work);

/// Prints on rank 0. A job's target exists even if the report cannot be printed.
void print_report(JobOptions const& options, std::string const& text, Json const& document);

/// The exit code: after a plan the job may be one that would be refused.
int code_of(RunReport const& report, Comm const& comm);

}  // namespace reshard
