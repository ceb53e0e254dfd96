#include "pipeline/cli/command_facts.hpp"

#include <CLI/CLI.hpp>

namespace reshard {
namespace {

/// CLI11 puts the names of checks behind a colon.
std::string plain_type(CLI::Option const& option) {
  std::string const type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

OptionFacts facts_of(CLI::Option const& option) {
  OptionFacts facts;
  for (std::string const& name : option.get_snames()) facts.names.push_back("-" + name);
  for (std::string const& name : option.get_lnames()) facts.names.push_back("--" + name);
  facts.text = option.get_description();
  facts.required = option.get_required();
  if (facts.names.empty()) {
    facts.names = {option.get_name(true)};
    facts.kind = kind_of_word(facts.names.front());
    facts.choices = choices_of_word(facts.names.front());
    facts.several = option.get_items_expected_max() > 1;
    return facts;
  }
  if (option.get_items_expected_max() == 0) return facts;
  facts.value = plain_type(option);
  facts.kind = kind_of_word(facts.value);
  facts.choices = choices_of_word(facts.value);
  facts.several = facts.kind == WordKind::setting;
  return facts;
}

CommandFacts facts_of(CLI::App const& app) {
  CommandFacts facts{.name = app.get_name(),
                     .text = app.get_description(),
                     .examples = app.get_footer(),
                     .options = {}};
  for (CLI::Option const* option : app.get_options())
    if (!option->get_group().empty()) facts.options.push_back(facts_of(*option));
  return facts;
}

}  // namespace

CommandTable command_table(CLI::App const& app) {
  CommandTable table{facts_of(app)};
  table.front().name = "";
  for (CLI::App const* command :
       app.get_subcommands([](CLI::App const* sub) { return !sub->get_group().empty(); }))
    table.push_back(facts_of(*command));
  return table;
}

}  // namespace reshard
