#include <CLI/CLI.hpp>

#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/verify/suspects.hpp"

namespace reshard {
namespace {

/// A script must be able to ask.
constexpr int code_of_suspects = 1;

class SuspectsCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand(
               "suspects",
               "read every weight and list what a sound model does not have: NaN and infinity, "
               "tensors of zeros or of one value, equal experts or layers, many subnormal values, "
               "scales of zero, replicas, tied weights or master weights that differ, padding "
               "that is not zero. Exit code 1: there are some")
            ->footer("mpirun -n 8 reshard suspects /data/model-hf");
    sub->add_option("PATH", path_, "a checkpoint")->required()->type_name("");
    add_map(*sub, map_);
    add_config(*sub, config_);
    add_prefix(*sub, prefix_);
    sub->add_option("--limit", limit_, "rows to show (default: 50)")->type_name("N");
    add_json(*sub, json_);
    return sub;
  }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    SuspectQuery query;
    query.path = path_;
    query.map = map_;
    query.config = config_;
    query.prefix = prefix_;
    query.row_limit = limit_;
    query.map_folders = surroundings.map_folders;
    SuspectReport const report = find_suspects(query, comm);
    if (comm.rank() == 0) write_to_stdout(json_ ? report.json.dump(2) + "\n" : report.text);
    return report.sound ? 0 : code_of_suspects;
  }

 private:
  std::string path_;
  std::string map_ = "auto";
  std::string config_;  ///< config.json or its folder; "" for none
  std::string prefix_;  ///< "" for none
  std::size_t limit_ = 50;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_suspects_command() { return std::make_unique<SuspectsCommand>(); }

}  // namespace reshard
