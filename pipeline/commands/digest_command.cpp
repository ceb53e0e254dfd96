#include "pipeline/commands/all_commands.hpp"
#include "pipeline/commands/checkpoint_command.hpp"
#include "pipeline/verify/digest.hpp"

namespace reshard {
namespace {

class DigestCommand : public CheckpointCommand<DigestQuery> {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand(
               "digest",
               "read a checkpoint and print a digest of each logical tensor, which is the same "
               "in every layout and format")
            ->footer("mpirun -n 8 reshard digest /data/model-hf --json");
    add_path(*sub);
    add_reading(*sub);
    sub->add_flag("--sha256", query_.sha256,
                  "SHA-256 of the row-major bytes of each tensor instead; --json also has the "
                  "digests, and the SHA-256 of each layer and expert");
    sub->add_flag("--weights-only", query_.weights_only,
                  "leave out optimizer state: a training checkpoint then has the total of its "
                  "export");
    add_json_choice(*sub);
    return sub;
  }

 protected:
  int answer(Comm const& comm) override {
    print(digest_report(query_, comm), comm);
    return 0;
  }
};

}  // namespace

std::unique_ptr<Command> make_digest_command() { return std::make_unique<DigestCommand>(); }

}  // namespace reshard
