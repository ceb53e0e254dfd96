#include <optional>

#include <CLI/CLI.hpp>

#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/commands/job_command.hpp"
#include "pipeline/messages/log.hpp"
#include "pipeline/view/view.hpp"

namespace reshard {
namespace {

class ViewCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand(
               "view", "write an HTML page that shows which file holds what, and what a job moves")
            ->footer("reshard view job.toml -o layout.html");
    sub->add_option("PATH|JOB.toml", subject_,
                    "a checkpoint, or a job file: source and target side by side")
        ->type_name("");
    sub->add_option("-o,--output", output_, "the page to write; - writes it to stdout")
        ->type_name("FILE");
    sub->add_option("--set", overrides_, "override a key of the job file")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
    sub->add_option(
           "--map", map_,
           "model map of a checkpoint (default: auto); none: tensors by their stored names")
        ->type_name("MAP");
    sub->add_option("--config", config_, "config.json or its folder, if the checkpoint has none")
        ->type_name("PATH");
    add_prefix(*sub, prefix_);
    sub->add_flag("--plain", plain_,
                  "do not compress the data in the page, for browsers older than 2023");
    sub->add_flag("--json", json_, "the same data as one JSON document on stdout");
    return sub;
  }

  std::string mistake() const override {
    if (subject_.empty()) return "view: no input given. Name a checkpoint or a job file.";
    if (!output_ && !json_) return "view: no output given. Name a file with -o, or use --json.";
    if (output_ == "-" && json_)
      return "view: -o - and --json both write to stdout. Name a file with -o, or leave one out.";
    if (is_file_of_job() && (map_ || config_ || !prefix_.empty()))
      return "view: a job file names its own map, config and prefix. Use --set model.map=… or --set "
             "source.config=….";
    if (!is_file_of_job() && !overrides_.empty())
      return "view: --set overrides keys of a job file, and no job file is given. Leave it out.";
    return "";
  }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    ViewQuery query;
    if (is_file_of_job())
      query.job = read_job(subject_, overrides_, JobUse::run, surroundings.library, comm);
    else
      query.path = subject_;
    query.map = map_.value_or(query.map);
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
  bool is_file_of_job() const { return subject_.ends_with(".toml"); }

  std::string subject_;  ///< a checkpoint, or a job file (a file whose name ends in .toml)
  std::vector<std::string> overrides_;  ///< of a job file
  std::optional<std::string> map_;      ///< of a checkpoint
  std::optional<std::string> config_;
  std::string prefix_;
  std::optional<std::string> output_;  ///< "-" is stdout
  bool plain_ = false;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_view_command() { return std::make_unique<ViewCommand>(); }

}  // namespace reshard
