#include <CLI/CLI.hpp>

#include "pipeline/cli/say.hpp"
#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/describe/check_map.hpp"

namespace reshard {
namespace {

class CheckMapCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand(
               "check-map",
               "show what a model map says about a model, and check that every element has one "
               "place on both sides")
            ->footer("reshard check-map qwen3_moe --config /data/model-hf");
    sub->add_option("MAP", map_, "a map of the map folder, or a path")->required()->type_name("");
    CLI::Option* config =
        sub->add_option("--config", config_, "config.json or its folder: the model to check it on")
            ->type_name("PATH");
    sub->add_option("--args", args_, "the same from Megatron's args, as a JSON file")
        ->type_name("FILE")
        ->excludes(config);
    add_json(*sub, json_);
    return sub;
  }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    if (comm.rank() != 0) return 0;
    MapReport const report = check_map_report(map_, config_, args_, surroundings.map_folders);
    write_to_stdout(json_ ? report.json.dump(2) + "\n" : report.text);
    if (report.error.empty()) return 0;
    say("error: " + report.error + "\n");
    return exit_code(ErrorKind::usage);
  }

 private:
  std::string map_;
  std::string config_;  ///< config.json or its folder; "" for none
  std::string args_;    ///< JSON file with Megatron's args
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_check_map_command() { return std::make_unique<CheckMapCommand>(); }

}  // namespace reshard
