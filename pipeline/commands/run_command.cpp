#include "pipeline/commands/all_commands.hpp"
#include "pipeline/commands/job_command.hpp"

namespace reshard {
namespace {

/// `run`, and `plan`, which is `run --dry-run`.
class RunCommand : public Command {
 public:
  explicit RunCommand(bool plan) : plan_(plan) { options_.dry_run = plan; }

  CLI::App* add_to(CLI::App& app) override {
    if (plan_)
      return add_job_options(
          app,
          {"plan",
           "show what a job would do, what it needs, and why it would be refused; write nothing",
           "reshard plan job.toml --set target.layout.tp=4 --json"},
          options_, false);
    return add_job_options(
        app,
        {"run", "convert a checkpoint as a job file says; start it with mpirun or srun",
         "mpirun -n 8 reshard run job.toml --set run.memory=\"2 GiB\""},
        options_, true);
  }

  bool is_job() const override { return true; }
  PhaseLine::Style phases() const override { return phases_of(options_); }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    JobSpec const job =
        read_job(options_.job_file, options_.overrides, JobUse::run, surroundings.library, comm);
    return run_job(options_, job, surroundings, comm);
  }

 private:
  bool plan_;
  JobOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_run_command() { return std::make_unique<RunCommand>(false); }
std::unique_ptr<Command> make_plan_command() { return std::make_unique<RunCommand>(true); }

}  // namespace reshard
