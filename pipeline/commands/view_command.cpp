#include <optional>

#include <CLI/CLI.hpp>

#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/commands/job_command.hpp"
#include "pipeline/commands/two_checkpoints.hpp"
#include "pipeline/messages/log.hpp"
#include "pipeline/view/view.hpp"

namespace reshard {
namespace {

class ViewCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand("view",
                           "write an HTML page that shows which file holds what, what a job moves, "
                           "or where two checkpoints differ")
            ->footer(
                "reshard view job.toml -o layout.html\n"
                "mpirun -n 8 reshard view /data/model-hf /data/model-hf-finetuned -o diff.html");
    sub->add_option("PATH|JOB.toml", subjects_,
                    "a checkpoint; or a job file: source and target side by side; or two "
                    "checkpoints, which are compared as `diff` compares them")
        ->expected(0, 2)
        ->type_name("");
    sub->add_option("-o,--output", output_, "the page to write; - writes it to stdout")
        ->type_name("FILE");
    sub->add_option("--set", overrides_, "override a key of the job file")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
    sub->add_option("--ranks", ranks_,
                    "plan the job file for N ranks (default: the ranks that run this command)")
        ->type_name("N")
        ->check(CLI::Range(1, most_planned_ranks));
    sub->add_option("--measured", measured_,
                    "what `run --json` printed of an earlier run: the page gives the time that the "
                    "job file takes at its rates")
        ->type_name("FILE");
    sub->add_option("--map", map_,
                    "model map of checkpoints (default: auto); none: tensors by their stored names")
        ->type_name("MAP");
    sub->add_option("--config", config_, "config.json or its folder, if the checkpoint has none")
        ->type_name("PATH");
    add_prefix(*sub, prefix_);
    sides_.add_to(*sub);
    sub->add_flag("--plain", plain_,
                  "do not compress the data in the page, for browsers older than 2023");
    sub->add_flag("--json", json_, "the same data as one JSON document on stdout");
    return sub;
  }

  std::string mistake() const override {
    if (subjects_.empty())
      return "view: no input given. Name a checkpoint, a job file, or two checkpoints.";
    if (!output_ && !json_) return "view: no output given. Name a file with -o, or use --json.";
    if (output_ == "-" && json_)
      return "view: -o - and --json both write to stdout. Name a file with -o, or leave one out.";
    if (is_pair() && (is_job(subjects_.front()) || is_job(subjects_.back())))
      return "view: a job file is shown alone, with its source and target. Give one job file, or two "
             "checkpoints.";
    if (is_file_of_job() && (map_ || config_ || !prefix_.empty() || sides_.is_given()))
      return "view: a job file names its own map, config and prefix. Use --set model.map=… or --set "
             "source.config=….";
    if (!is_file_of_job() && !(overrides_.empty() && ranks_ == 0 && measured_.empty()))
      return "view: --set, --ranks and --measured belong to a job file, and no job file is given. "
             "Leave them out.";
    if (is_pair() && (config_ || !prefix_.empty()))
      return "view: --config and --prefix say how one checkpoint is read. Give --config-a, "
             "--config-b, --prefix-a or --prefix-b.";
    if (!is_pair() && sides_.is_given())
      return "view: --map-a, --config-a, --prefix-a, --source-a, those of b and --adapter belong to two "
             "checkpoints. Give two, or use --map, --config and --prefix.";
    return sides_.mistake();
  }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    ViewQuery query;
    query.map = map_.value_or(query.map);
    if (is_file_of_job()) {
      query.job = read_job(subjects_.front(), overrides_, JobUse::run, surroundings.library, comm);
    } else if (is_pair()) {
      TwoCheckpoints sides = sides_;
      sides.map = query.map;
      query.compare = sides.request(subjects_, Comparison::values, surroundings.library, comm);
    } else {
      query.path = subjects_.front();
    }
    query.ranks = ranks_;
    query.measured = measured_;
    query.config = config_.value_or("");
    query.prefix = prefix_;
    query.library = surroundings.library;
    if (output_) query.output = *output_;
    query.json = json_;
    if (plain_) query.data = PageData::plain;
    ViewOutput const output = view(query, comm);
    warn(output.warnings);
    write_to_stdout(output.text);
    return 0;
  }

 private:
  static bool is_job(std::string const& subject) { return subject.ends_with(".toml"); }
  bool is_file_of_job() const { return !is_pair() && is_job(subjects_.front()); }
  bool is_pair() const { return subjects_.size() == 2; }

  std::vector<std::string> subjects_;   ///< checkpoints, or a job file (its name ends in .toml)
  std::vector<std::string> overrides_;  ///< of a job file
  int ranks_ = 0;                       ///< of a job; 0: those of this command
  std::string measured_;                ///< "" for none
  TwoCheckpoints sides_;                ///< of two checkpoints, except their map
  std::optional<std::string> map_;      ///< of checkpoints
  std::optional<std::string> config_;
  std::string prefix_;
  std::optional<std::string> output_;  ///< "-" is stdout
  bool plain_ = false;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_view_command() { return std::make_unique<ViewCommand>(); }

}  // namespace reshard
