#include <CLI/CLI.hpp>

#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/describe/check_map.hpp"
#include "pipeline/describe/draft_map.hpp"
#include "pipeline/messages/log.hpp"

namespace reshard {
namespace {

class CheckMapCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand(
               "check-map",
               "check a model map: that every element of a model has one place on both sides; "
               "or draft a map")
            ->footer(
                "reshard check-map qwen3_moe --config /data/model-hf\n"
                "reshard check-map --draft /data/new-model-hf > new_model.toml");
    sub->add_option("MAP", map_, "the name of a map, or the path of a map file")->type_name("");
    CLI::Option* config =
        sub->add_option("--config", config_, "config.json or its folder: the model to check it on")
            ->type_name("PATH");
    sub->add_option("--args", args_, "the same from Megatron's args, as a JSON file")
        ->type_name("FILE")
        ->excludes(config);
    sub->add_option(
           "--draft", draft_,
           "propose a map for a model without one, based on MAP or on the nearest; PATH is its "
           "folder, or config.json and model.safetensors.index.json")
        ->type_name("PATH")
        ->expected(1, 2)
        ->excludes("--config")
        ->excludes("--args");
    add_json(*sub, json_);
    return sub;
  }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    if (comm.rank() != 0) return 0;
    if (!draft_.empty()) {
      MapReport const draft = draft_map_report(map_, draft_, surroundings.library);
      write_to_stdout(json_ ? draft.json.dump(2) + "\n" : draft.text);
      return 0;
    }
    if (map_.empty())
      fail(ErrorKind::usage,
           "check-map: no map is named. Name one, or use --draft PATH to get a proposal.");
    MapReport const report = check_map_report(map_, config_, args_, surroundings.library);
    write_to_stdout(json_ ? report.json.dump(2) + "\n" : report.text);
    if (report.error.empty()) return 0;
    log(LogLevel::error, report.error);
    return exit_code(ErrorKind::usage);
  }

 private:
  std::string map_;
  std::string config_;              ///< config.json or its folder; "" for none
  std::string args_;                ///< JSON file with Megatron's args
  std::vector<std::string> draft_;  ///< config.json or a folder, and an index; empty for a check
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_check_map_command() { return std::make_unique<CheckMapCommand>(); }

}  // namespace reshard
