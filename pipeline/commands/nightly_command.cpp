#include <algorithm>
#include <array>
#include <set>

#include "pipeline/commands/all_commands.hpp"
#include "pipeline/commands/job_command.hpp"
#include "pipeline/messages/log.hpp"
#include "pipeline/nightly/nightly.hpp"
#include "pipeline/nightly/nightly_after.hpp"
#include "pipeline/verify/verify_part.hpp"

namespace reshard {
namespace {

/// The end of one checkpoint's task.
struct Outcome {
  NightlyTask task;
  std::optional<RunReport> report;  ///< of a conversion, also one that was only planned
  std::optional<Error> error;       ///< with nightly.backfill: why there is no target
  std::optional<AfterReport> after;

  int code() const {
    if (error) return exit_code(error->kind());
    return after ? after->code : 0;
  }
  std::string reason() const { return error ? error->sentence() : after ? after->error : ""; }
  bool planned() const { return report && report->planned_only; }
  bool made_target() const { return report && !report->planned_only; }
};

/// Whether the next checkpoint would fail for the same reason.
bool ends_the_night(Outcome const& outcome) {
  int const code = outcome.code();
  constexpr std::array all = {ErrorKind::interrupted, ErrorKind::resources, ErrorKind::stall,
                              ErrorKind::internal};
  return std::ranges::any_of(all, [&](ErrorKind kind) { return exit_code(kind) == code; });
}

/// The code of the first failure, but that of a signal when there was one: then the same command
/// continues.
int exit_code_of(std::vector<Outcome> const& outcomes) {
  int first = 0;
  for (Outcome const& outcome : outcomes) {
    if (outcome.code() == exit_code(ErrorKind::interrupted)) return outcome.code();
    if (first == 0) first = outcome.code();
  }
  return first;
}

Json outcome_json(Outcome const& outcome, JobSpec const& job) {
  Json json = task_json(outcome.task, outcome.planned());
  if (outcome.error)
    json.set("action", "failed")
        .set("exit_code", outcome.code())
        .set("error", outcome.error->sentence());
  if (!job.nightly.after.empty())
    json.set("after", outcome.after ? after_json(*outcome.after) : Json());
  return json;
}

/// The exit code when files of a target are not as recorded, as `reshard verify` has it.
constexpr int damaged_code = 1;

/// A part of a target's files that was read again.
struct Reading {
  std::string target;
  PartReport report;
  std::optional<Error> error;  ///< why it could not be read

  int code() const { return error ? exit_code(error->kind()) : report.sound ? 0 : damaged_code; }
  Json json() const {
    Json json;
    if (error) return json.set("path", target).set("error", error->sentence());
    return report.json;
  }
};

/// All that came of a night.
struct Night {
  JobSpec const& job;
  std::vector<Outcome> const& outcomes;
  NightlyRemoval const& removal;
  std::vector<Reading> const& readings;
  int code = 0;
};

/// All that the night warned of, in the order of its messages, each sentence once.
std::vector<std::string> warnings_of(Night const& night) {
  std::vector<std::string> all;
  auto const add = [&](std::vector<std::string> const& some) {
    for (std::string const& one : some)
      if (std::ranges::find(all, one) == all.end()) all.push_back(one);
  };
  add(night.outcomes.front().task.warnings);
  for (Outcome const& outcome : night.outcomes)
    if (outcome.report) add(outcome.report->warnings);
  for (Outcome const& outcome : night.outcomes)
    if (outcome.after && !outcome.after->warning.empty()) add({outcome.after->warning});
  add(night.removal.warnings);
  return all;
}

/// The newest complete checkpoint of a training directory, as `run` would convert it.
class NightlyCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    return add_job_options(
        app,
        {"nightly",
         "convert the newest complete checkpoint of a training directory, if it is not "
         "converted yet; keep the last few",
         "srun --mpi=pmix reshard nightly nightly.toml"},
        options_, true);
  }

  bool is_job() const override { return true; }
  PhaseLine::Style phases() const override { return phases_of(options_); }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    JobSpec const job = read_job(options_.job_file, options_.overrides, JobUse::nightly,
                                 surroundings.library, comm);
    std::unique_ptr<EventFile> const events = open_events(options_, job, comm);
    std::vector<Outcome> outcomes;
    NightlyTask task;
    with_result(events.get(), [&] {
      task = find_nightly_task(job, comm);
      outcomes = carry_out_all(job, task, events.get(), surroundings, comm);
    });
    NightlyRemoval const removal = remove(job, task, outcomes, comm);
    std::vector<Reading> const readings = read_again(job, outcomes, comm);
    int code = exit_code_of(outcomes);
    for (Reading const& reading : readings)
      if (code == 0) code = reading.code();
    Night const night{job, outcomes, removal, readings, code};
    if (events) add_result(*events, night);
    if (comm.rank() == 0) tell(night);
    return code != 0 ? code : code_of_plans(outcomes, comm);
  }

 private:
  /// The newest checkpoint first; it is there also when there is nothing to do. Collective.
  std::vector<Outcome> carry_out_all(JobSpec const& job, NightlyTask& task, EventFile* events,
                                     Surroundings const& surroundings, Comm const& comm) {
    std::vector<NightlyTask> tasks = task.older;
    tasks.insert(tasks.begin(), task);
    std::vector<Outcome> outcomes;
    if (comm.rank() == 0) warn(task.warnings);
    for (NightlyTask& one : tasks) {
      outcomes.push_back({.task = std::move(one), .report = {}, .error = {}, .after = {}});
      Outcome& outcome = outcomes.back();
      auto const error = capture([&] { convert(outcome, events, surroundings, comm); });
      if (error) {
        if (!job.nightly.backfill) throw *error;
        outcome.error = agreed_error(*error, comm);
      } else {
        // Before the command, which may send the target to where it is used.
        if (comm.rank() == 0 && outcome.report) warn(outcome.report->warnings);
        run_command_after(job, outcome, events, surroundings, comm);
      }
      if (job.nightly.backfill && events != nullptr) add_conversion(*events, job, outcome);
      if (ends_the_night(outcome)) break;
    }
    task.action = outcomes.front().task.action;
    return outcomes;
  }

  /// Ranks may have errors of their own: all go on by the one of the highest kind.
  static Error agreed_error(Error const& error, Comm const& comm) {
    return {static_cast<ErrorKind>(comm.max(static_cast<std::int64_t>(error.kind()))),
            error.sentence()};
  }

  /// Converts, unless there is nothing to do. Collective.
  void convert(Outcome& outcome, EventFile* events, Surroundings const& surroundings,
               Comm const& comm) {
    NightlyTask& task = outcome.task;
    if (task.action != NightlyTask::Action::convert) return;
    auto const error = capture([&] {
      outcome.report =
          carry_out(options_, task.job, task.source_record, events, surroundings, comm);
    });
    if (!error) return;
    // Perhaps another job has just made this very target, and runs its command.
    if (error->kind() != ErrorKind::target || !is_up_to_date(task.job, comm)) throw *error;
    task.action = NightlyTask::Action::up_to_date;
    task.after_due = false;
  }

  void run_command_after(JobSpec const& job, Outcome& outcome, EventFile* events,
                         Surroundings const& surroundings, Comm const& comm) const {
    bool const due = outcome.made_target() || outcome.task.after_due;
    if (job.nightly.after.empty() || options_.dry_run || !due) return;
    Json const about = Json().set("target", outcome.task.job.target.path);
    if (events != nullptr) events->add("after", Json(about).set("state", "begin"));
    if (comm.rank() == 0 && !options_.quiet && options_.progress != ProgressStyle::none)
      log(LogLevel::info, fmt::format("nightly.after runs for {}", outcome.task.job.target.path));
    outcome.after =
        run_after(job, outcome.task, {.just_made = outcome.made_target()}, surroundings.stop, comm);
    if (events == nullptr) return;
    Json end = after_json(*outcome.after);
    for (auto const& [key, value] : *about.members()) end.set(key, value);
    events->add("after", std::move(end));
  }

  /// Nothing while the newest has no target, after a signal, and where nightly.after has failed: it
  /// may be what takes targets elsewhere. Collective.
  NightlyRemoval remove(JobSpec const& job, NightlyTask const& task,
                        std::vector<Outcome> const& outcomes, Comm const& comm) const {
    bool const stopped = exit_code_of(outcomes) == exit_code(ErrorKind::interrupted);
    bool const after_failed = std::ranges::any_of(
        outcomes, [](Outcome const& one) { return one.after && one.after->code != 0; });
    if (options_.dry_run || stopped || outcomes.front().error || after_failed) return {};
    std::set<std::string> awaited;  // also those that this night has not come to
    for (NightlyTask const& older : task.older) awaited.insert(older.name);
    for (Outcome const& outcome : outcomes)
      if (!outcome.error) awaited.erase(outcome.task.name);
    return remove_surplus(job, task, awaited, comm);
  }

  /// With nightly.verify_subset: the part of today of every target but those that this night has
  /// made, and so read back. Collective.
  std::vector<Reading> read_again(JobSpec const& job, std::vector<Outcome> const& outcomes,
                                  Comm const& comm) const {
    int const code = exit_code_of(outcomes);
    if (job.nightly.verify_subset == 0 || options_.dry_run ||
        code == exit_code(ErrorKind::interrupted))
      return {};
    std::vector<Reading> readings;
    for (std::string const& name : standing_targets(job, comm)) {
      bool const new_made = std::ranges::any_of(outcomes, [&](Outcome const& outcome) {
        return outcome.made_target() && outcome.task.name == name;
      });
      if (new_made) continue;
      Reading reading;
      reading.target = (std::filesystem::path(job.target.path) / name).string();
      auto const error = capture([&] {
        reading.report = verify_part(
            {reading.target, fmt::format("auto/{}", job.nightly.verify_subset), {}}, comm);
      });
      if (error) reading.error = agreed_error(*error, comm);
      readings.push_back(std::move(reading));
    }
    return readings;
  }

  static void add_conversion(EventFile& events, JobSpec const& job, Outcome const& outcome) {
    if (!outcome.report && !outcome.error) return;
    Json json = outcome_json(outcome, job);
    if (outcome.report) json.set("report", report_json(*outcome.report));
    events.add("conversion", std::move(json));
  }

  static void add_result(EventFile& events, Night const& night) {
    Json result = Json().set("exit_code", night.code);
    for (Outcome const& outcome : night.outcomes)
      if (night.code != 0 && outcome.code() == night.code && result.find("error") == nullptr)
        result.set("error", outcome.reason());
    result.set("nightly", night_json(night, false));
    auto const& report = night.outcomes.front().report;
    events.add("result", report ? result.set("report", report_json(*report)) : result);
  }

  /// The one document. With nightly.backfill it lists all conversions, with their reports.
  static Json night_json(Night const& night, bool with_reports) {
    JobSpec const& job = night.job;
    Outcome const& newest = night.outcomes.front();
    auto const report_of = [](Outcome const& outcome) {
      return outcome.report ? report_json(*outcome.report) : Json();
    };
    Json document = nightly_json(newest.task, night.removal, newest.planned());
    std::vector<std::string> const warnings = warnings_of(night);
    document.set("warnings", Json(Json::Array(warnings.begin(), warnings.end())));
    if (job.nightly.verify_subset > 0) {
      Json verified = Json::array();
      for (Reading const& reading : night.readings) verified.push(reading.json());
      document.set("verified", std::move(verified));
    }
    if (!job.nightly.backfill) {
      if (!job.nightly.after.empty())
        document.set("after", newest.after ? after_json(*newest.after) : Json());
      return with_reports ? document.set("report", report_of(newest)) : document;
    }
    if (newest.error) document.set("action", "failed");
    Json list = Json::array();
    for (Outcome const& outcome : night.outcomes) {
      if (outcome.task.name.empty()) continue;
      Json one = outcome_json(outcome, job);
      list.push(with_reports ? one.set("report", report_of(outcome)) : one);
    }
    return document.set("conversions", std::move(list)).set("exit_code", night.code);
  }

  /// The exit code of plans: a job may be one that would be refused.
  static int code_of_plans(std::vector<Outcome> const& outcomes, Comm const& comm) {
    int first = 0;
    for (Outcome const& outcome : outcomes)
      if (int const code = outcome.report ? code_of(*outcome.report, comm) : 0; first == 0)
        first = code;
    return first;
  }

  /// Prints on rank 0.
  void tell(Night const& night) const {
    for (Outcome const& outcome : night.outcomes) {
      if (outcome.after && !outcome.after->warning.empty()) warn({outcome.after->warning});
      if (outcome.code() != 0) log(LogLevel::error, outcome.reason());
    }
    warn(night.removal.warnings);
    for (Reading const& reading : night.readings) {
      if (reading.error) log(LogLevel::error, reading.error->sentence());
      if (!reading.error && !reading.report.sound) log(LogLevel::error, reading.report.text);
    }
    if (options_.keeps_report()) return;
    std::string text;
    for (Outcome const& outcome : night.outcomes) {
      if (outcome.report)
        text += report_text(*outcome.report, options_.detail());
      else if (std::string const line = nightly_line(night.job, outcome.task); !line.empty())
        text += line + "\n";
      if (outcome.after) text += after_text(*outcome.after, outcome.task);
    }
    for (Reading const& reading : night.readings)
      if (!reading.error)
        text +=
            fmt::format("{}          {}: {}{}\n", reading.report.sound ? "verified" : "DAMAGED ",
                        reading.target, reading.report.line,
                        reading.report.sound ? "" : ". Remove it: the next night makes it again");
    for (std::string const& path : night.removal.removed)
      text += "removed           " + path + "\n";
    for (std::string const& path : night.removal.cleaned)
      text += "cleaned           " + path + ": left by an interrupted nightly run\n";
    print_report(options_, text, night_json(night, true));
  }

  JobOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_nightly_command() { return std::make_unique<NightlyCommand>(); }

}  // namespace reshard
