#include "pipeline/commands/job_command.hpp"
#include "pipeline/verify/checkpoint_query.hpp"

#include <array>
#include <cstdio>

#include <CLI/CLI.hpp>

#include "core/base/files/file.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "core/transport/monitor/heartbeat.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/cli/standard_output.hpp"
#include "pipeline/job/job_paths.hpp"
#include "pipeline/job/key_places.hpp"
#include "pipeline/messages/live_line.hpp"
#include "pipeline/messages/log.hpp"
#include "pipeline/run/agreement.hpp"
#include "pipeline/version.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t largest_job_bytes = 4U << 20;

ProgressStyle progress_style(std::string_view word) {
  if (word == "live") return ProgressStyle::live;
  if (word == "lines") return ProgressStyle::lines;
  return word == "none" ? ProgressStyle::none : ProgressStyle::automatic;
}

std::string standard_input(std::uint64_t most_bytes) {
  std::string text;
  std::array<char, 1U << 14> part;
  while (std::size_t const bytes = std::fread(part.data(), 1, part.size(), stdin)) {
    text.append(part.data(), bytes);
    if (text.size() > most_bytes)
      fail(ErrorKind::usage,
           "standard input: more than {} bytes, which is no job file. Check what writes it.",
           most_bytes);
  }
  return text;
}

/// Options of commands that write.
void add_writing_options(CLI::App& sub, JobOptions& options) {
  CLI::Option* dry =
      sub.add_flag("--dry-run,--plan", options.dry_run, "only plan, as `reshard plan` does");
  sub.add_option("--trace", options.trace_file, "write the run's timeline to FILE, for Perfetto")
      ->type_name("FILE")
      ->excludes(dry);
  sub.add_option("--events", options.events_file,
                 "append events to FILE (- for stdout) as NDJSON; the last line has the exit code")
      ->type_name("FILE")
      ->excludes(dry);
  sub.add_option_function<std::string>(
         "--progress",
         [&options](std::string const& style) { options.progress = progress_style(style); },
         "how to show progress on stderr (default: a live line on a terminal, else a line every "
         "run.progress_seconds)")
      ->type_name("auto|live|lines|none")
      ->check(CLI::IsMember(std::vector<std::string>{"auto", "live", "lines", "none"}));
  sub.add_option_function<std::string>(
         "--log-format",
         [](std::string const& word) {
           set_log_format(word == "json"   ? LogFormat::json
                          : word == "text" ? LogFormat::text
                                           : LogFormat::automatic);
         },
         "warnings, errors and progress with the time (text), or as JSON lines (default: text in a "
         "file)")
      ->type_name("auto|text|json")
      ->check(CLI::IsMember(std::vector<std::string>{"auto", "text", "json"}));
  sub.add_flag("--fresh", options.fresh, "start afresh instead of resuming an interrupted run");
  sub.add_flag("--quiet", options.quiet,
               "print only warnings and errors; a report only with --json")
      ->excludes("--verbose");
}

}  // namespace

CLI::App* add_job_options(CLI::App& app, JobTexts const& texts, JobOptions& options,
                          bool may_dry_run) {
  CLI::App* sub = app.add_subcommand(texts.name, texts.text)->footer(texts.examples);
  sub->add_option("JOB.toml", options.job_file, "the job file; - for standard input")
      ->required()
      ->type_name("");
  add_running_options(*sub, options, may_dry_run);
  return sub;
}

void add_running_options(CLI::App& app, JobOptions& options, bool may_write) {
  CLI::App* const sub = &app;
  sub->add_option("--set", options.overrides,
                  "override a key of the job file, such as target.layout.tp=4")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  sub->add_option_function<std::string>(
         "--device",
         [&options](std::string const& value) {
           options.overrides.push_back("run.device=" + value);
         },
         "override run.device of the job file")
      ->type_name(choices_of("run.device"));
  sub->add_flag("--verbose", options.verbose,
                "a longer report: also how it is planned, where time goes, the keys that are set");
  if (!may_write)
    sub->add_option("--ranks", options.ranks,
                    "plan for N ranks in this one process; --verbose and --json list the least, "
                    "the mean and the most that a rank does (default: the ranks that plan)")
        ->type_name("N")
        ->check(CLI::Range(1, most_planned_ranks));
  if (may_write)
    sub->add_option_function<std::string>(
           "--self-check",
           [&options](std::string const& value) {
             options.overrides.push_back("run.self_check=" + value);
           },
           "override run.self_check: how many elements of each tensor a second arithmetic compares")
        ->type_name("K");
  if (may_write) add_writing_options(*sub, options);
  add_json(*sub, options.json);
}

JobSpec read_job(std::string const& file, std::vector<std::string> const& overrides, JobUse use,
                 MapLibrary const& library, Comm const& comm) {
  Heartbeat const heartbeat(comm, usual_silence_seconds);
  JobSpec job;
  std::string text;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    if (std::error_code ignored; std::filesystem::is_directory(file, ignored))
      fail(ErrorKind::usage,
           "{}: is a folder, not a job file. `reshard init {} -o job.toml` writes a job file for "
           "the checkpoint in it.",
           file, file);
    try {
      text =
          file == "-" ? standard_input(largest_job_bytes) : read_text_file(file, largest_job_bytes);
    } catch (Error const& error) {
      // A file that the system cannot read is no mistake of whoever wrote it.
      if (error.kind() != ErrorKind::source) throw;
      throw Error(ErrorKind::usage, error.sentence());
    }
  });
  text = comm.broadcast(std::move(text), 0);  // one reading: no rank can see another job
  together_seeing(comm, [&] {
    job = parse_job_spec(text, file == "-" ? "standard input" : file, overrides, use,
                         [&library] { return library.mesh_axes(); });
  });
  if (comm.rank() == 0) warn(job.notes);
  if (use != JobUse::source) check_same_folder(comm, job);
  return job;
}

void add_source_job(CLI::App& command, std::string& into) {
  command
      .add_option(
          "--source", into,
          "a job file whose [source] and [model] say how the checkpoint is read: source.format, "
          "prefix and config, model.map and adapter and the like; its source.path does not count")
      ->type_name("JOB.toml");
}

std::shared_ptr<JobSpec const> read_source_job(std::string const& file, MapLibrary const& library,
                                               Comm const& comm) {
  auto job = std::make_shared<JobSpec const>(read_job(file, {}, JobUse::source, library, comm));
  check_reading(*job);
  return job;
}

std::unique_ptr<EventFile> open_events(JobOptions const& options, JobSpec const& job,
                                       Comm const& comm) {
  std::unique_ptr<EventFile> events;
  together(comm, [&] {
    if (options.dry_run || !options.events_file || comm.rank() != 0) return;
    if (*options.events_file != "-") check_outside_job(*options.events_file, "--events", job, {});
    events = std::make_unique<EventFile>(*options.events_file);
  });
  return events;
}

PhaseLine::Style phases_of(JobOptions const& options) {
  if (options.quiet || options.progress == ProgressStyle::none) return PhaseLine::Style::none;
  bool const live = options.progress == ProgressStyle::live ||
                    (options.progress == ProgressStyle::automatic && live_line::on_terminal());
  if (live) return PhaseLine::Style::live;
  return options.dry_run ? PhaseLine::Style::none : PhaseLine::Style::lines;
}

RunReport carry_out(JobOptions const& options, JobSpec const& job, Json const& source_record,
                    EventFile* events, Surroundings const& surroundings, Comm const& comm) {
  RunContext context{surroundings.library, surroundings.stop};
  if (options.trace_file) context.trace_file = *options.trace_file;
  context.source_record = source_record;
  context.fresh = options.fresh;
  context.ranks = options.ranks;
  context.progress = options.quiet ? ProgressStyle::none : options.progress;
  RunReport report;
  if (options.dry_run) {
    with_key_places(job, [&] { report = plan_only(job, context, comm); });
    if (report.refusal) report.refusal = at_its_key(job, *report.refusal);
    return report;
  }
  context.events = events;
  if (events != nullptr)
    events->add("start", Json()
                             .set("version", version_number())
                             .set("ranks", comm.size())
                             .set("job", print_spec(job)));
  with_key_places(job, [&] { report = run(job, context, comm); });
  return report;
}

int run_job(JobOptions const& options, JobSpec const& job, Surroundings const& surroundings,
            Comm const& comm) {
  std::unique_ptr<EventFile> const events = open_events(options, job, comm);
  RunReport report;
  with_result(events.get(),
              [&] { report = carry_out(options, job, {}, events.get(), surroundings, comm); });
  if (events) events->add("result", Json().set("exit_code", 0).set("report", report_json(report)));
  if (comm.rank() == 0) {
    warn(report.warnings);
    if (!options.keeps_report())
      print_report(options, report_text(report, options.detail()), report_json(report));
  }
  return code_of(report, comm);
}

void with_result(EventFile* events, std::function<void()> const& work) {
  auto const error = capture(work);
  if (!error) return;
  if (events != nullptr)
    events->add("result",
                Json().set("exit_code", exit_code(error->kind())).set("error", error->sentence()));
  throw *error;
}

void print_report(JobOptions const& options, std::string const& text, Json const& document) {
  auto const error = capture([&] {
    write_to_stdout(options.json ? document.dump(2) + "\n" : logged_report(text, &document));
  });
  if (error && options.dry_run) throw *error;
  if (error) warn({error->sentence() + " The job itself completed."});
}

int code_of(RunReport const& report, Comm const& comm) {
  if (!report.refusal) return 0;
  if (comm.rank() == 0) log(LogLevel::error, report.refusal->sentence());
  return exit_code(report.refusal->kind());
}

}  // namespace reshard
