#include <fmt/ranges.h>
#include <unistd.h>

#include "pipeline/commands/all_commands.hpp"
#include "pipeline/commands/checkpoint_command.hpp"
#include "pipeline/extract/extract.hpp"
#include "pipeline/extract/serve.hpp"

namespace reshard {
namespace {

class ExtractCommand : public CheckpointCommand<ExtractQuery> {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand(
               "extract",
               "write logical tensors of a checkpoint, in any format and layout, into one "
               "safetensors file for a look in Python")
            ->footer("reshard extract /data/model 'layer.3.experts.*' -o l3.safetensors");
    add_path(*sub);
    CLI::Option* const patterns =
        sub->add_option(
               "PATTERN", query_.patterns,
               "names as `reshard ls PATH --logical` shows them, or parts of them, such as "
               "layer.3.experts.gate; '*' matches any text, '?' one character. Of a quantised "
               "weight, its parts are written")
            ->required()
            ->type_name("");
    CLI::Option* const output =
        sub->add_option("-o,--output", query_.output, "the safetensors file to write")
            ->required()
            ->type_name("FILE");
    sub->add_option("--at", at_,  // several count together
                    "only the part at these indices, without those axes: layer=3, or "
                    "layer=3,expert=5")
        ->type_name("AXIS=INDEX")
        ->allow_extra_args(false);
    sub->add_flag("--force", force_, "replace FILE if it exists");
    // The reader process of the Python module: not for users, so no page lists it.
    sub->add_flag_callback("--serve",
                           [this, patterns, output] {
                             serve_ = true;
                             patterns->required(false);
                             output->required(false);
                           })
        ->group("");
    add_reading(*sub);
    add_json_choice(*sub);
    return sub;
  }

  std::string mistake() const override {
    if (query_.output == "-")
      return "extract: -o -: all ranks write the file, so stdout cannot be it. Give -o a file.";
    return "";
  }

 protected:
  int answer(Comm const& comm) override {
    if (serve_) {
      serve_arrays(query_, STDIN_FILENO, comm);
      return 0;
    }
    query_.at = fmt::format("{}", fmt::join(at_, ","));
    if (force_) query_.existing = ExistingTarget::replace;
    print(extract_tensors(query_, comm), comm);
    return 0;
  }

 private:
  std::vector<std::string> at_;  ///< empty: all
  bool force_ = false;
  bool serve_ = false;
};

}  // namespace

std::unique_ptr<Command> make_extract_command() { return std::make_unique<ExtractCommand>(); }

}  // namespace reshard
