#include <filesystem>

#include <CLI/CLI.hpp>

#include "core/base/text/json.hpp"
#include "pipeline/cli/command_table.hpp"
#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/describe/init_job.hpp"

namespace reshard {
namespace {

/// Writes a job file for a source.
class InitCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand(
               "init",
               "write a job file for a source, with the targets that are possible and the "
               "settings that they need")
            ->footer("reshard init /data/model/iter_0001000 -o job.toml");
    std::string const formats = choices_of("target.format");
    sub->add_option("SOURCE", source_, "a checkpoint")->required()->type_name("");
    sub->add_option("-o,--output", output_,
                    "the job file to write, which must not exist (default: - for stdout)")
        ->type_name("FILE");
    sub->add_option("--target-format", target_format_,
                    "the target's format (default: the most common one for this source)")
        ->transform([](std::string const& word) { return std::string(full_format_word(word)); })
        ->check(CLI::IsMember(choices_of_word(formats)))
        ->type_name(formats);
    add_json(*sub, json_);
    return sub;
  }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    std::string const place = std::filesystem::absolute(source_).string();
    if (place != valid_utf8(place))
      fail(ErrorKind::usage,
           "{}: the path is not UTF-8, as a job file has to be. Rename it, or give a link to it "
           "whose path is.",
           valid_utf8(place));
    InitRequest request{source_, std::nullopt, surroundings.library};
    if (!target_format_.empty()) request.format = format_named(target_format_);
    std::string const text = init_job(request, comm);
    if (output_ == "-") output_.clear();
    together(comm, [&] {
      if (comm.rank() == 0 && !output_.empty()) write_new_job(output_, text);
    });
    if (comm.rank() != 0) return 0;
    if (json_)
      write_to_stdout(Json().set("output", output_).set("job", text).dump(2) + "\n");
    else if (output_.empty())
      write_to_stdout(text);
    return 0;
  }

 private:
  std::string source_;
  std::string output_;         ///< "": to stdout
  std::string target_format_;  ///< "": one that suits the source
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_init_command() { return std::make_unique<InitCommand>(); }

}  // namespace reshard
