#include "pipeline/cli/command_line.hpp"

#include <algorithm>
#include <array>
#include <span>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "pipeline/cli/command_words.hpp"
#include "pipeline/cli/completion.hpp"
#include "pipeline/cli/manual.hpp"
#include "pipeline/cli/map_folders.hpp"
#include "pipeline/job/job_field.hpp"
#include "pipeline/version.hpp"

namespace reshard {
namespace {

constexpr char const* examples = R"(reshard init /data/model/iter_0001000 -o job.toml
mpirun -n 8 reshard run job.toml --set run.memory="2 GiB"
mpirun -n 8 reshard verify /data/model/iter_0001000 /data/model-hf
srun --mpi=pmix reshard run job.toml)";

/// `reshard __complete SHELL WORD…`: hidden, for the scripts of `reshard completion`.
constexpr std::string_view asked_by_shells = "__complete";

/// Values of the program's own options, and of those commands that print texts about the command
/// line.
struct OwnOptions {
  bool version = false;
  bool json = false;
  bool defaults = false;
  std::string shell;
  std::string page;
};

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

/// The table of a configured command line. The footer of an app is its examples.
CommandTable command_table(CLI::App const& app) {
  CommandTable table{facts_of(app)};
  table.front().name = "";
  for (CLI::App const* command :
       app.get_subcommands([](CLI::App const* sub) { return !sub->get_group().empty(); }))
    table.push_back(facts_of(*command));
  return table;
}

CommandLine printed(std::string text) { return {nullptr, std::move(text), 0}; }
CommandLine mistake(std::string const& text) { return {nullptr, "error: " + text + "\n", 2}; }

/// Adds the texts for shells and packagers.
void add_texts(CLI::App& app, OwnOptions& own) {
  CLI::App* completion =
      app.add_subcommand("completion",
                         "print the script that completes commands, options and keys in a shell")
          ->footer("source <(reshard completion bash)");
  completion->add_option("bash|zsh|fish", own.shell, "the shell")
      ->required()
      ->type_name("")
      ->check(CLI::IsMember(completion_shells()));
  CLI::App* man = app.add_subcommand("man", "a page of the manual, for packagers")->group("");
  man->add_option("PAGE", own.page, "the page")
      ->required()
      ->type_name("")
      ->check(CLI::IsMember(manual_pages()));
}

/// Of an option that takes one value, the last one counts: scripts can put defaults before what a
/// user adds.
void let_the_last_win(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    for (CLI::Option* option : command->get_options())
      if (!option->get_positional() && option->get_items_expected_max() <= 1)
        option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

/// A path that is "", perhaps from a variable of a script that is not set.
std::string empty_path(CLI::App const& command) {
  for (CLI::Option const* option : command.get_options()) {
    WordKind const kind =
        kind_of_word(option->get_positional() ? option->get_name(true) : option->get_type_name());
    if (kind != WordKind::file && kind != WordKind::path) continue;
    for (std::string const& word : option->results())
      if (word.empty())
        return fmt::format(
            "{}: {}: the path is empty. Give a path; a variable of a script may "
            "be unset.",
            command.get_name(), option->get_name(option->get_positional()));
  }
  return "";
}

/// CLI11's messages in our words.
std::string plain_words(std::string text) {
  // "--progress: foo not in {auto,live}"
  if (std::size_t const at = text.find(" not in {"); at != std::string::npos && text.ends_with('}'))
    text = fmt::format("{}, expected one of {}", text.substr(0, at),
                       text.substr(at + 9, text.size() - at - 10));
  // "PATH: At Most 2 required but received 3"
  for (auto const& [found, ours] :
       {std::pair(": At Most ", ": at most "),
        std::pair(" required but received ", " expected, found "),
        std::pair("The following argument was not expected: ", "this word is not expected: "),
        std::pair("The following arguments were not expected: ", "these words are not expected: ")})
    if (std::size_t const at = text.find(found); at != std::string::npos)
      text.replace(at, std::string_view(found).size(), ours);
  return text;
}

CLI::App const* command_of(CLI::App const& app) {
  CLI::App const* command = &app;
  for (CLI::App const* sub : app.get_subcommands()) command = sub;
  return command;
}

/// `reshard --json inspect X` means what `reshard inspect --json X` means.
std::vector<std::string> json_behind_command(std::vector<std::string> words) {
  auto const command = std::find_if(words.begin(), words.end(),
                                    [](std::string const& word) { return !word.starts_with('-'); });
  auto const json = std::find(words.begin(), command, "--json");
  if (json != command && command != words.end()) std::rotate(json, json + 1, command + 1);
  return words;
}

/// `reshard help`, `reshard help COMMAND`.
CommandLine help_of(CommandTable const& table, std::span<std::string const> names) {
  std::string const name = names.empty() ? "" : names.front();
  for (CommandFacts const& command : table)
    if (command.name == name) return printed(help_text(table, name));
  return mistake("command line: " + unknown_command(table, name));
}

CommandLine no_command(CommandTable const& table) {
  std::vector<std::string> names;
  for (CommandFacts const& command : table)
    if (!command.name.empty()) names.push_back(command.name);
  return mistake(fmt::format("no command given. Name one of: {}. `reshard --help` describes them.",
                             fmt::join(names, ", ")));
}

/// The program's command line: its grammar and its meaning.
class Parser {
 public:
  explicit Parser(Commands const& commands) : commands_(commands) {
    app_.set_help_flag("-h,--help", "this help");
    app_.add_flag("--version", own_.version, "print the version and the libraries");
    app_.add_flag("--json", own_.json, "print JSON: with --version, or before a command");
    app_.add_flag("--print-defaults", own_.defaults, "print a complete, commented job file");
    app_.require_subcommand(0, 1);
    for (auto const& command : commands) apps_.push_back(command->add_to(app_));
    add_texts(app_, own_);
    let_the_last_win(app_);
    app_.footer(examples);
    app_.get_help_ptr()->description(
        "print this help; `reshard COMMAND --help` is that of a "
        "command");
    table_ = command_table(app_);
  }

  CommandLine run(std::vector<std::string> const& words) {
    if (!words.empty() && words.front() == "help")
      return help_of(table_, std::span(words).subspan(1));
    if (words.size() > 1 && words.front() == asked_by_shells)
      return printed(candidates(words[1], std::span(words).subspan(2), table_, map_folders()));
    std::string const unknown =
        unknown_word(table_, words, std::array<std::string, 2>{"man", "--serve"});
    if (!unknown.empty()) return mistake("command line: " + unknown);
    try {
      app_.parse(std::vector<std::string>(words.rbegin(),
                                          words.rend()));  // CLI11 takes them from the back
    } catch (CLI::CallForHelp const&) {
      CLI::App const* asked = command_of(app_);
      return printed(help_text(table_, asked == &app_ ? "" : asked->get_name()));
    } catch (CLI::ParseError const& error) {
      CLI::App const* meant = command_of(app_);
      std::string const program = meant == &app_ ? "reshard" : "reshard " + meant->get_name();
      return mistake(fmt::format("command line: {}. `{} --help` shows what it takes.",
                                 plain_words(error.what()), program));
    }
    std::string const empty = empty_path(*command_of(app_));
    return empty.empty() ? chosen() : mistake(empty);
  }

 private:
  CommandLine chosen() const {
    if (own_.version) return printed(own_.json ? version_json().dump(2) + "\n" : version_text());
    if (own_.defaults) return printed(default_job_text());
    if (app_.got_subcommand("completion")) return printed(completion_script(own_.shell));
    if (app_.got_subcommand("man")) return printed(manual_page(own_.page, table_));
    for (std::size_t c = 0; c < apps_.size(); ++c) {
      if (!app_.got_subcommand(apps_[c])) continue;
      std::string const wrong = commands_[c]->mistake();
      return wrong.empty() ? CommandLine{commands_[c].get(), "", 0} : mistake(wrong);
    }
    return no_command(table_);
  }

  Commands const& commands_;
  CLI::App app_{"Converts checkpoints of large models between parallel layouts and formats.",
                "reshard"};
  OwnOptions own_;
  std::vector<CLI::App*> apps_;
  CommandTable table_;
};

}  // namespace

CommandLine parse_command_line(int argc, char const* const* argv, Commands const& commands) {
  return Parser(commands).run(json_behind_command({argv + std::min(argc, 1), argv + argc}));
}

}  // namespace reshard
