#include <CLI/CLI.hpp>

#include "core/base/text/json.hpp"
#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "stages/write/publish.hpp"

namespace reshard {
namespace {

/// Removes what interrupted runs left beside a target.
class CleanCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand(
               "clean",
               "remove what interrupted runs left beside a target; the target itself is kept")
            ->footer("reshard clean /data/model-hf");
    sub->add_option("TARGET", target_, "target.path of the job")->required()->type_name("");
    add_json(*sub, json_);
    return sub;
  }

  int run(Surroundings const&, Comm const& comm) override {
    together(comm, [&] {
      if (comm.rank() != 0) return;
      Cleaned const cleaned = remove_leftovers(target_, WithoutLocks::when_quiet);
      if (json_) return write_to_stdout(json_of(cleaned).dump(2) + "\n");
      if (cleaned.put_back)
        write_to_stdout(fmt::format(
            "{}: the checkpoint that a killed run was replacing was renamed back\n", target_));
      if (cleaned.removed || !cleaned.put_back)
        write_to_stdout(fmt::format("{}: {}\n", target_,
                                    cleaned.removed ? "what interrupted runs left was removed"
                                                    : "there was nothing to remove"));
    });
    return 0;
  }

 private:
  Json json_of(Cleaned const& cleaned) const {
    return Json()
        .set("target", target_)
        .set("removed", cleaned.removed)
        .set("restored", cleaned.put_back);
  }

  std::string target_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_clean_command() { return std::make_unique<CleanCommand>(); }

}  // namespace reshard
