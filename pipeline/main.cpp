#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>

#include <unistd.h>

#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "core/transport/heartbeat.hpp"
#include "pipeline/cli/command_line.hpp"
#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/check_map.hpp"
#include "pipeline/commands/init_job.hpp"
#include "pipeline/job/job_paths.hpp"
#include "pipeline/nightly/nightly.hpp"
#include "pipeline/run/agreement.hpp"
#include "pipeline/run/run.hpp"
#include "pipeline/verify/compare.hpp"
#include "pipeline/verify/digest.hpp"
#include "pipeline/verify/verify_one.hpp"
#include "pipeline/version.hpp"
#include "pipeline/view/view.hpp"
#include "stages/write/publish.hpp"

namespace {

using namespace reshard;
namespace fs = std::filesystem;

constexpr std::uint64_t largest_job_bytes = 4U << 20;

/// How long a rank may be silent in commands that have no job file.
constexpr double silence_seconds = 600;

constexpr std::string_view error_word = "error: ";

std::atomic<bool> stop_requested = false;

extern "C" void request_stop(int) { stop_requested = true; }

/// Where maps lie: RESHARD_MAPS, then share/reshard/models of the folder above the program's own; a build folder has a link of that name.
std::vector<fs::path> map_folders() {
  std::vector<fs::path> folders;
  if (char const* own = std::getenv("RESHARD_MAPS"); own != nullptr && *own != '\0') folders.emplace_back(own);
  std::array<char, PATH_MAX> program{};
  ssize_t const length = ::readlink("/proc/self/exe", program.data(), program.size() - 1);
  if (length > 0) folders.push_back(fs::path(program.data()).parent_path().parent_path() / "share" / "reshard" / "models");
  return folders;
}

/// Names from a file must not steer the terminal.
void say(std::string const& text) {
  std::string const shown = without_controls(text, "\n\t");
  std::fwrite(shown.data(), 1, shown.size(), stderr);
}

void warn(std::vector<std::string> const& warnings) {
  for (std::string const& warning : warnings) say("warning: " + without_controls(warning) + "\n");
}

/// What a job made is there, whether anybody can be told or not.
void print_report(RunCommand const& command, std::string const& text) {
  auto const error = capture([&] { write_to_stdout(text); });
  if (error && command.dry_run) throw *error;
  if (error) warn({error->sentence() + " The job itself is done."});
}

JobSpec read_job(std::string const& file, std::vector<std::string> const& overrides, JobUse use, Comm const& comm) {
  Heartbeat const heartbeat(comm, silence_seconds);
  JobSpec job;
  std::string text;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    try {
      text = read_text_file(file, largest_job_bytes);
    } catch (Error const& error) {
      throw Error(ErrorKind::usage, error.sentence());
    }
  });
  text = comm.broadcast(std::move(text), 0);  // one reading: no rank can see another job
  together(comm, [&] { job = parse_job_spec(text, file, overrides, use); });
  check_same_folder(comm, job);
  return job;
}

/// On rank 0, when the command names a file for events; collective.
std::unique_ptr<EventFile> open_events(RunCommand const& command, JobSpec const& job, Comm const& comm) {
  std::unique_ptr<EventFile> events;
  together(comm, [&] {
    if (!command.events_file || comm.rank() != 0) return;
    if (*command.events_file != "-") check_outside_job(*command.events_file, "--events", job, {});
    events = std::make_unique<EventFile>(*command.events_file);
  });
  return events;
}

/// Collective. `source_record` goes into the target's manifest; `events` may be null. The result is not told there yet.
RunReport carry_out(RunCommand const& command, JobSpec const& job, Json const& source_record, EventFile* events, Comm const& comm) {
  RunContext context{map_folders(), &stop_requested};
  if (command.trace_file) context.trace_file = *command.trace_file;
  context.source_record = source_record;
  context.fresh = command.fresh;
  context.progress = command.quiet ? ProgressStyle::none : command.progress;
  if (command.dry_run) return plan_only(job, context, comm);
  context.events = events;
  if (events != nullptr) events->add("start", Json().set("version", version_number()).set("ranks", comm.size()).set("job", print_spec(job)));
  return run(job, context, comm);
}

/// Does the work and tells the events of its failure.
void with_result(EventFile* events, std::function<void()> const& work) {
  auto const error = capture(work);
  if (!error) return;
  if (events != nullptr) events->add("result", Json().set("exit_code", exit_code(error->kind())).set("error", error->sentence()));
  throw *error;
}

/// Whether the report is not to be seen on stdout: other things are, or nothing is.
bool keeps_report(RunCommand const& command) { return (command.quiet && !command.json) || command.events_file == "-"; }

/// After a plan: the job would be refused.
int code_of_plan(RunReport const& report, Comm const& comm) {
  if (!report.refusal) return 0;
  if (comm.rank() == 0) say("error: " + report.refusal->sentence() + "\n");
  return exit_code(report.refusal->kind());
}

int carry_out(RunCommand const& command, Comm const& comm) {
  JobSpec const job = read_job(command.job_file, command.overrides, JobUse::run, comm);
  std::unique_ptr<EventFile> const events = command.dry_run ? nullptr : open_events(command, job, comm);
  RunReport report;
  with_result(events.get(), [&] { report = carry_out(command, job, {}, events.get(), comm); });
  if (events) events->add("result", Json().set("exit_code", 0).set("report", report_json(report)));
  if (comm.rank() == 0) {
    warn(report.warnings);
    if (!keeps_report(command)) print_report(command, command.json ? report_json(report).dump(2) + "\n" : report_text(report));
  }
  return code_of_plan(report, comm);
}

/// Prints on rank 0; without a report there was nothing to convert.
void tell(RunCommand const& command, JobSpec const& job, NightlyTask const& task, std::optional<RunReport> const& report,
          NightlyRemoval const& removal) {
  if (report) warn(report->warnings);
  warn(removal.warnings);
  if (keeps_report(command)) return;
  if (command.json) {
    Json document = nightly_json(task, removal, report && report->planned_only);
    return print_report(command, document.set("report", report ? report_json(*report) : Json()).dump(2) + "\n");
  }
  std::string text = report ? report_text(*report) : nightly_line(job, task) + "\n";
  for (std::string const& path : removal.removed) text += "removed           " + path + "\n";
  for (std::string const& path : removal.cleaned) text += "cleaned           " + path + ": left by an interrupted night\n";
  print_report(command, text);
}

/// Converts, unless there is nothing to do: then there is no report. Collective.
std::optional<RunReport> convert(RunCommand const& command, JobSpec const& job, NightlyTask& task, EventFile* events, Comm const& comm) {
  task = find_nightly_task(job, comm);
  if (task.action != NightlyTask::Action::convert) return std::nullopt;
  std::optional<RunReport> report;
  auto const error = capture([&] { report = carry_out(command, task.job, task.source_record, events, comm); });
  // Perhaps another job has just made this very target.
  if (error && error->kind() == ErrorKind::target) task = find_nightly_task(job, comm);
  if (error && task.action == NightlyTask::Action::convert) throw *error;
  return report;
}

int carry_out(NightlyCommand const& command, Comm const& comm) {
  JobSpec const job = read_job(command.run.job_file, command.run.overrides, JobUse::nightly, comm);
  std::unique_ptr<EventFile> const events = command.run.dry_run ? nullptr : open_events(command.run, job, comm);
  NightlyTask task;
  std::optional<RunReport> report;
  with_result(events.get(), [&] { report = convert(command.run, job, task, events.get(), comm); });
  NightlyRemoval removal;
  if (!command.run.dry_run) removal = remove_surplus(job, task, comm);
  if (events) {
    Json result = Json().set("exit_code", 0).set("nightly", nightly_json(task, removal, false));
    events->add("result", report ? result.set("report", report_json(*report)) : result);
  }
  if (comm.rank() == 0) tell(command.run, job, task, report, removal);
  return report ? code_of_plan(*report, comm) : 0;
}

void carry_out(InitCommand const& command, Comm const& comm) {
  InitRequest request{command.source, std::nullopt, map_folders()};
  for (CheckpointFormat const format : {CheckpointFormat::megatron, CheckpointFormat::huggingface, CheckpointFormat::dcp,
                                        CheckpointFormat::torch_dist, CheckpointFormat::fsdp_dtensor, CheckpointFormat::hdf5})
    if (name(format) == command.target_format) request.format = format;
  std::string const text = init_job(request, comm);
  together(comm, [&] {
    if (comm.rank() == 0 && !command.output.empty()) write_new_job(command.output, text);
  });
  if (comm.rank() == 0 && command.output.empty()) write_to_stdout(text);
}

void carry_out(CleanCommand const& command, Comm const& comm) {
  together(comm, [&] {
    if (comm.rank() != 0) return;
    Cleaned const cleaned = remove_leftovers(command.target, WithoutLocks::when_quiet);
    if (cleaned.put_back) write_to_stdout(fmt::format("{}: the checkpoint that a killed run was replacing has its name again\n", command.target));
    if (cleaned.removed || !cleaned.put_back)
      write_to_stdout(
          fmt::format("{}: {}\n", command.target, cleaned.removed ? "what interrupted runs left was removed" : "there was nothing to remove"));
  });
}

int carry_out(InspectCommand const& command, Comm const& comm) {
  if (comm.rank() != 0) return 0;
  Inspection const found = inspect(command.path, command.sizes);
  write_to_stdout(command.json ? found.json.dump(2) + "\n" : found.text);
  return found.sound ? 0 : exit_code(ErrorKind::source);
}

void carry_out(ListCommand const& command, Comm const& comm) {
  TensorList const list = list_tensors(command.path, command.listing, command.map, map_folders(), comm);
  if (comm.rank() == 0) write_to_stdout(command.json ? list.json.dump(2) + "\n" : list.text);
}

int carry_out(CheckMapCommand const& command, Comm const& comm) {
  if (comm.rank() != 0) return 0;
  MapReport const report = check_map_report(command.map, command.config, command.args, map_folders());
  write_to_stdout(command.json ? report.json.dump(2) + "\n" : report.text);
  if (report.error.empty()) return 0;
  say("error: " + report.error + "\n");
  return exit_code(ErrorKind::usage);
}

/// What differs is no error, but a script must be able to ask.
constexpr int code_of_difference = 1;

void carry_out(DigestCommand const& command, Comm const& comm) {
  DigestQuery query;
  query.path = command.path;
  query.map = command.map;
  query.config = command.config;
  query.map_folders = map_folders();
  DigestReport const report = digest_report(query, comm);
  if (comm.rank() == 0) write_to_stdout(command.json ? report.json.dump(2) + "\n" : report.text);
}

int verify_alone(VerifyCommand const& command, Comm const& comm) {
  DigestQuery query;
  query.path = command.paths.front();
  query.map = command.map;
  query.config = command.config_a;
  query.scope = command.replicas ? DigestScope::all : DigestScope::distinct;
  query.map_folders = map_folders();
  VerifyReport const report = verify_one(std::move(query), comm);
  if (comm.rank() == 0) write_to_stdout(command.json ? report.json.dump(2) + "\n" : report.text);
  return report.sound ? 0 : code_of_difference;
}

int carry_out(VerifyCommand const& command, Comm const& comm) {
  if (command.paths.size() == 1) return verify_alone(command, comm);
  CompareRequest request;
  request.a = command.paths.front();
  request.b = command.paths.back();
  request.comparison = command.values ? Comparison::values : Comparison::bytes;
  request.map = command.map;
  request.config_a = command.config_a;
  request.config_b = command.config_b;
  request.row_limit = command.limit;
  request.map_folders = map_folders();
  CompareReport const report = compare_checkpoints(request, comm);
  if (comm.rank() == 0) write_to_stdout(command.json ? report.json.dump(2) + "\n" : report.text);
  return report.same ? 0 : code_of_difference;
}

void carry_out(ViewCommand const& command, Comm const& comm) {
  ViewQuery query;
  if (command.is_job())
    query.job = read_job(command.subject, command.overrides, JobUse::run, comm);
  else
    query.path = command.subject;
  query.trace = command.trace_file;
  query.map = command.map.value_or(query.map);
  query.config = command.config.value_or("");
  query.map_folders = map_folders();
  if (command.output) query.output = *command.output;
  query.json = command.json;
  if (command.plain) query.data = PageData::plain;
  ViewOutput const output = view(query, comm);
  warn(output.warnings);
  write_to_stdout(output.text);
}

int carry_out(Command const& command, Comm const& comm) {
  if (auto const* job = std::get_if<RunCommand>(&command)) return carry_out(*job, comm);
  if (auto const* nightly = std::get_if<NightlyCommand>(&command)) return carry_out(*nightly, comm);
  if (auto const* init = std::get_if<InitCommand>(&command)) carry_out(*init, comm);
  if (auto const* clean = std::get_if<CleanCommand>(&command)) carry_out(*clean, comm);
  if (auto const* list = std::get_if<ListCommand>(&command)) carry_out(*list, comm);
  if (auto const* digest = std::get_if<DigestCommand>(&command)) carry_out(*digest, comm);
  if (auto const* drawn = std::get_if<ViewCommand>(&command)) carry_out(*drawn, comm);
  if (auto const* verify = std::get_if<VerifyCommand>(&command)) return carry_out(*verify, comm);
  if (auto const* look = std::get_if<InspectCommand>(&command)) return carry_out(*look, comm);
  if (auto const* check = std::get_if<CheckMapCommand>(&command)) return carry_out(*check, comm);
  return 0;
}

int execute(Command const& command, std::vector<std::string> const& words, Comm const& comm) {
  std::optional<Heartbeat> heartbeat(std::in_place, comm, silence_seconds);
  int code = 0;
  auto const error = capture([&] {
    check_same_start(comm, words);
    // A job says itself how long ranks may be silent.
    if (std::holds_alternative<RunCommand>(command) || std::holds_alternative<NightlyCommand>(command)) heartbeat.reset();
    code = carry_out(command, comm);
  });
  if (error) comm.end_with(*error);
  return code;
}

/// Told on stderr. With --json a script finds the reason where it looks for the answer, too.
void tell_failure(std::vector<std::string> const& words, int code, std::string_view line) {
  say(fmt::format("{}\n", line));
  std::string_view const sentence = line.substr(line.starts_with(error_word) ? error_word.size() : 0);
  if (std::find(words.begin(), words.end(), "--json") == words.end()) return;
  capture([&] { write_to_stdout(Json().set("exit_code", code).set("error", sentence).dump(2) + "\n"); });
}

/// What needs no rank.
int print_only(PrintCommand const& command, std::vector<std::string> const& words) {
  if (command.code != 0) {
    std::string_view text = command.text;
    while (text.ends_with('\n')) text.remove_suffix(1);
    tell_failure(words, command.code, text);
    return command.code;
  }
  auto const error = capture([&] { write_to_stdout(command.text); });
  if (!error) return 0;
  say("error: " + error->sentence() + "\n");
  return exit_code(error->kind());
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit shall be an error of write, not the end
  guard_standard_streams();
  std::vector<std::string> const words(argv + std::min(argc, 1), argv + argc);
  Command const command = parse_command_line(argc, argv);
  if (auto const* text = std::get_if<PrintCommand>(&command)) return print_only(*text, words);
  if (std::holds_alternative<RunCommand>(command) || std::holds_alternative<NightlyCommand>(command)) {
    for (int const signal : {SIGUSR1, SIGTERM, SIGINT, SIGHUP}) std::signal(signal, request_stop);
    std::signal(SIGPIPE, SIG_IGN);  // who reads our words may go, the job stays
  }
  int code = 0;
  int rank = 0;
  auto const error = capture([&] {
    MpiSession const session(&argc, &argv);
    Comm const comm = Comm::world();
    rank = comm.rank();
    auto const failed = capture([&] { code = execute(command, words, comm); });
    if (!failed) return;
    // Every rank has this error: the lowest one speaks.
    code = exit_code(failed->kind());
    if (rank == 0) tell_failure(words, code, fmt::format("{}{}", error_word, failed->sentence()));
  });
  if (!error) return code;
  tell_failure(words, exit_code(error->kind()), fmt::format("{}{}", error_word, error->sentence()));
  return exit_code(error->kind());
}
