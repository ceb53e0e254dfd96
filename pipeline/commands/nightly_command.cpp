#include "pipeline/cli/say.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/commands/job_command.hpp"
#include "pipeline/nightly/nightly.hpp"

namespace reshard {
namespace {

/// The newest complete checkpoint of a training directory, as `run` would convert it.
class NightlyCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    return add_job_options(
        app,
        {"nightly",
         "convert the newest complete checkpoint of a training directory, unless that is done "
         "already; keep the last few",
         "srun --mpi=pmix reshard nightly nightly.toml"},
        options_, true);
  }

  bool is_job() const override { return true; }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    JobSpec const job = read_job(options_.job_file, options_.overrides, JobUse::nightly,
                                 surroundings.map_folders, comm);
    std::unique_ptr<EventFile> const events = open_events(options_, job, comm);
    NightlyTask task;
    std::optional<RunReport> report;
    with_result(events.get(),
                [&] { report = convert(job, task, events.get(), surroundings, comm); });
    NightlyRemoval removal;
    if (!options_.dry_run) removal = remove_surplus(job, task, comm);
    if (events) {
      Json result = Json().set("exit_code", 0).set("nightly", nightly_json(task, removal, false));
      events->add("result", report ? result.set("report", report_json(*report)) : result);
    }
    if (comm.rank() == 0) tell(job, task, report, removal);
    return report ? code_of(*report, comm) : 0;
  }

 private:
  /// Converts, unless there is nothing to do: then there is no report. Collective.
  std::optional<RunReport> convert(JobSpec const& job, NightlyTask& task, EventFile* events,
                                   Surroundings const& surroundings, Comm const& comm) {
    task = find_nightly_task(job, comm);
    if (task.action != NightlyTask::Action::convert) return std::nullopt;
    std::optional<RunReport> report;
    auto const error = capture([&] {
      report = carry_out(options_, task.job, task.source_record, events, surroundings, comm);
    });
    // Perhaps another job has just made this very target.
    if (error && error->kind() == ErrorKind::target) task = find_nightly_task(job, comm);
    if (error && task.action == NightlyTask::Action::convert) throw *error;
    return report;
  }

  /// Prints on rank 0; without a report there was nothing to convert.
  void tell(JobSpec const& job, NightlyTask const& task, std::optional<RunReport> const& report,
            NightlyRemoval const& removal) const {
    if (report) warn(report->warnings);
    warn(removal.warnings);
    if (options_.keeps_report()) return;
    if (options_.json) {
      Json document = nightly_json(task, removal, report && report->planned_only);
      return print_report(
          options_, document.set("report", report ? report_json(*report) : Json()).dump(2) + "\n");
    }
    std::string text = report ? report_text(*report) : nightly_line(job, task) + "\n";
    for (std::string const& path : removal.removed) text += "removed           " + path + "\n";
    for (std::string const& path : removal.cleaned)
      text += "cleaned           " + path + ": left by an interrupted nightly run\n";
    print_report(options_, text);
  }

  JobOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_nightly_command() { return std::make_unique<NightlyCommand>(); }

}  // namespace reshard
