#include "pipeline/commands/all_commands.hpp"
#include "pipeline/commands/checkpoint_command.hpp"
#include "pipeline/verify/suspects/suspects.hpp"

namespace reshard {
namespace {

/// A script must be able to ask.
constexpr int code_of_suspects = 1;

class SuspectsCommand : public CheckpointCommand<SuspectQuery> {
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
    add_path(*sub);
    add_reading(*sub);
    sub->add_option("--limit", query_.row_limit, "rows to show (default: 50)")->type_name("N");
    add_json_choice(*sub);
    return sub;
  }

 protected:
  int answer(Comm const& comm) override {
    SuspectReport const report = find_suspects(query_, comm);
    print(report, comm);
    return report.sound ? 0 : code_of_suspects;
  }
};

}  // namespace

std::unique_ptr<Command> make_suspects_command() { return std::make_unique<SuspectsCommand>(); }

}  // namespace reshard
