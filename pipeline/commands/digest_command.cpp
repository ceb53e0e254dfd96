#include <CLI/CLI.hpp>

#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/verify/digest.hpp"

namespace reshard {
namespace {

class DigestCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand(
               "digest",
               "read a checkpoint and print a digest of each logical tensor, which is the same "
               "in every layout and format")
            ->footer("mpirun -n 8 reshard digest /data/model-hf --json");
    sub->add_option("PATH", path_, "a checkpoint")->required()->type_name("");
    add_map(*sub, map_);
    add_config(*sub, config_);
    add_prefix(*sub, prefix_);
    sub->add_flag("--sha256", sha256_,
                  "SHA-256 of the row-major bytes of each tensor instead; --json also has the "
                  "digests, and the SHA-256 of each layer and expert");
    sub->add_flag("--weights-only", weights_only_,
                  "leave out optimizer state: a training checkpoint then has the total of its "
                  "export");
    add_json(*sub, json_);
    return sub;
  }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    DigestQuery query;
    query.path = path_;
    query.map = map_;
    query.config = config_;
    query.prefix = prefix_;
    query.sha256 = sha256_;
    query.weights_only = weights_only_;
    query.map_folders = surroundings.map_folders;
    DigestReport const report = digest_report(query, comm);
    if (comm.rank() == 0) write_to_stdout(json_ ? report.json.dump(2) + "\n" : report.text);
    return 0;
  }

 private:
  std::string path_;
  std::string map_ = "auto";
  std::string config_;  ///< config.json or its folder; "" for none
  std::string prefix_;  ///< "" for none
  bool sha256_ = false;
  bool weights_only_ = false;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_digest_command() { return std::make_unique<DigestCommand>(); }

}  // namespace reshard
