#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "pipeline/cli/say.hpp"
#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/verify/extract.hpp"

namespace reshard {
namespace {

class ExtractCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand(
               "extract",
               "write logical tensors of a checkpoint, in any format and layout, into one "
               "safetensors file for a look in Python")
            ->footer("reshard extract /data/model 'experts.*' --at layer=3 -o l3.safetensors");
    sub->add_option("PATH", path_, "a checkpoint")->required()->type_name("");
    sub->add_option("PATTERN", patterns_,
                    "names as `reshard ls PATH --logical` shows them; '*' matches any text, "
                    "'?' one character. Of a quantised weight, its parts are written")
        ->required()
        ->type_name("");
    sub->add_option("-o,--output", output_, "the safetensors file to write")
        ->required()
        ->type_name("FILE");
    sub->add_option("--at", at_,  // several count together
                    "only the part at these indices, without those axes: layer=3, or "
                    "layer=3,expert=5")
        ->type_name("AXIS=INDEX")
        ->allow_extra_args(false);
    sub->add_flag("--force", force_, "replace FILE if it exists");
    add_map(*sub, map_);
    add_config(*sub, config_);
    add_prefix(*sub, prefix_);
    add_json(*sub, json_);
    return sub;
  }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    ExtractQuery query;
    query.path = path_;
    query.patterns = patterns_;
    query.at = fmt::format("{}", fmt::join(at_, ","));
    query.output = output_;
    query.existing = force_ ? ExistingTarget::replace : ExistingTarget::refuse;
    query.map = map_;
    query.config = config_;
    query.prefix = prefix_;
    query.map_folders = surroundings.map_folders;
    ExtractReport const report = extract_tensors(query, comm);
    if (comm.rank() == 0) warn(report.notes);
    if (comm.rank() == 0) write_to_stdout(json_ ? report.json.dump(2) + "\n" : report.text);
    return 0;
  }

 private:
  std::string path_;
  std::vector<std::string> patterns_;
  std::vector<std::string> at_;  ///< empty: all
  std::string output_;
  bool force_ = false;
  std::string map_ = "auto";
  std::string config_;  ///< config.json or its folder; "" for none
  std::string prefix_;  ///< "" for none
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_extract_command() { return std::make_unique<ExtractCommand>(); }

}  // namespace reshard
