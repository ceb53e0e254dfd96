#include <CLI/CLI.hpp>

#include "core/formats/megatron/headers/classify.hpp"
#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/describe/look.hpp"

namespace reshard {
namespace {

/// Reads an optional positive size.
void add_size(CLI::App& app, std::string const& name, std::optional<int>& into,
              std::string const& text) {
  app.add_option_function<int>(
         name, [&into](int value) { into = value; }, text)
      ->check(CLI::Range(1, 999999))
      ->type_name("N");
}

class InspectCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand("inspect",
                           "show what a checkpoint is: format, layout, model, and what is "
                           "missing; read only headers")
            ->footer("reshard inspect /data/model/iter_0001000");
    sub->add_option("PATH", query_.path,
                    "a checkpoint, or the folder of a run, whose saves are listed")
        ->required()
        ->type_name("");
    sub->add_flag("--verbose", verbose_,
                  "every fact and its source: names, stages, what the loader expects");
    add_size(*sub, "--tp,--tensor-parallel-size", sizes_.tp,
             "check the folder for a loader with this tensor-parallel size");
    add_size(*sub, "--pp,--pipeline-parallel-size", sizes_.pp, "the same for pipeline parallelism");
    add_size(*sub, "--ep,--expert-parallel-size", sizes_.ep,
             "the same for expert parallelism; 1 selects the non-EP reader");
    add_size(*sub, "--etp,--expert-tensor-parallel-size", sizes_.etp,
             "the same for expert tensor parallelism");
    add_map(*sub, query_.map);
    add_config(*sub, query_.config);
    add_prefix(*sub, query_.prefix);
    add_json(*sub, json_);
    return sub;
  }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    if (comm.rank() != 0) return 0;
    query_.library = surroundings.library;
    Inspection const found = inspect(query_, sizes_);
    bool const brief = !verbose_ && !found.summary.empty();
    write_to_stdout(json_ ? found.json.dump(2) + "\n" : brief ? found.summary : found.text);
    if (Json const* refused = found.json.find("refused"); refused != nullptr && !json_)
      throw Error(ErrorKind::source, *refused->text());
    return found.sound ? 0 : exit_code(ErrorKind::source);
  }

 private:
  CheckpointQuery query_;
  megatron::UserSizes sizes_;
  bool json_ = false;
  bool verbose_ = false;
};

}  // namespace

std::unique_ptr<Command> make_inspect_command() { return std::make_unique<InspectCommand>(); }

}  // namespace reshard
