#include "pipeline/commands/all_commands.hpp"
#include "pipeline/commands/checkpoint_command.hpp"
#include "pipeline/describe/look.hpp"

namespace reshard {
namespace {

class LsCommand : public CheckpointCommand<ListQuery> {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand("ls", "list every tensor with dtype, shape and place; read only headers")
            ->footer("reshard ls /data/model-hf --logical");
    add_path(*sub);
    sub->add_flag("--logical", logical_,
                  "list the model's logical tensors instead of the stored "
                  "ones");
    sub->add_option("--map", query_.map, "model map for --logical (default: auto)")
        ->type_name("MAP");
    add_config(*sub, query_.config);
    add_prefix(*sub, query_.prefix);
    add_source(*sub);
    add_json_choice(*sub);
    return sub;
  }

 protected:
  int answer(Comm const& comm) override {
    if (logical_) query_.listing = Listing::logical;
    print(list_tensors(query_, comm), comm);
    return 0;
  }

 private:
  bool logical_ = false;
};

}  // namespace

std::unique_ptr<Command> make_ls_command() { return std::make_unique<LsCommand>(); }

}  // namespace reshard
