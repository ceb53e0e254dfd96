#include <CLI/CLI.hpp>

#include "pipeline/cli/say.hpp"
#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/describe/look.hpp"

namespace reshard {
namespace {

class LsCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand("ls", "list every tensor with dtype, shape and place; read only headers")
            ->footer("reshard ls /data/model-hf --logical");
    sub->add_option("PATH", path_, "a checkpoint")->required()->type_name("");
    sub->add_flag("--logical", logical_,
                  "list the model's logical tensors instead of the stored "
                  "ones");
    sub->add_option("--map", map_, "model map for --logical (default: auto)")->type_name("MAP");
    add_config(*sub, config_);
    add_prefix(*sub, prefix_);
    add_json(*sub, json_);
    return sub;
  }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    TensorList const list = list_tensors({path_, logical_ ? Listing::logical : Listing::stored,
                                          map_, config_, prefix_, surroundings.map_folders},
                                         comm);
    if (comm.rank() == 0) warn(list.notes);
    if (comm.rank() == 0) write_to_stdout(json_ ? list.json.dump(2) + "\n" : list.text);
    return 0;
  }

 private:
  std::string path_;
  bool logical_ = false;
  std::string map_ = "auto";
  std::string config_;  ///< config.json or its folder; "" for none
  std::string prefix_;  ///< "" for none
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_ls_command() { return std::make_unique<LsCommand>(); }

}  // namespace reshard
