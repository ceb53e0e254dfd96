#include "pipeline/cli/command.hpp"

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "pipeline/job/job_field.hpp"
#include "pipeline/messages/live_line.hpp"

namespace reshard {

PhaseLine::Style Command::phases() const {
  return live_line::on_terminal() ? PhaseLine::Style::live : PhaseLine::Style::none;
}

void add_json(CLI::App& command, bool& into) {
  command.add_flag("--json", into, "one JSON document on stdout");
}

void add_map(CLI::App& command, std::string& into) {
  command
      .add_option("--map", into, "model map (default: auto); none: tensors by their stored names")
      ->type_name("MAP");
}

void add_config(CLI::App& command, std::filesystem::path& into) {
  command.add_option("--config", into, "config.json or its folder, if the checkpoint has none")
      ->type_name("PATH");
}

void add_prefix(CLI::App& command, std::string& into) {
  command
      .add_option(
          "--prefix", into,
          "what stored names begin with beside the model's own, as source.prefix of a job; "
          "names without it are left out (default: as its reshard.json or config.json says)")
      ->type_name("TEXT");
}

std::string choices_of(std::string_view key) {
  for (job::Field const& field : job::fields())
    if (field.key() == key) return fmt::format("{}", fmt::join(field.choices, "|"));
  return "";
}

}  // namespace reshard
