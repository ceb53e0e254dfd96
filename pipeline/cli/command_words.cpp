#include "pipeline/cli/command_words.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/text.hpp"

namespace reshard {
namespace {

CommandFacts const* command_named(CommandTable const& table, std::string_view name) {
  auto const found = std::find_if(table.begin(), table.end(), [&](CommandFacts const& command) {
    return command.name == name;
  });
  return found == table.end() ? nullptr : &*found;
}

OptionFacts const* option_named(CommandFacts const& command, std::string_view name) {
  for (OptionFacts const& option : command.options)
    if (!option.positional() &&
        std::find(option.names.begin(), option.names.end(), name) != option.names.end())
      return &option;
  return nullptr;
}

/// "--set=a" is --set, "-ofile" is -o.
std::string name_in(std::string const& word) {
  return word.starts_with("--") ? word.substr(0, word.find('=')) : word.substr(0, 2);
}

bool is_option(std::string const& word) { return word.size() > 1 && word.front() == '-'; }

/// The option's value is the next word, not the rest of this one.
bool takes_next_word(OptionFacts const& option, std::string const& word) {
  return !option.value.empty() && word.size() == name_in(word).size();
}

std::string unknown_option(CommandFacts const& command, std::string const& word) {
  std::vector<std::string> names;
  for (OptionFacts const& option : command.options)
    if (!option.positional()) names.insert(names.end(), option.names.begin(), option.names.end());
  std::string const name = word.starts_with("--") ? name_in(word) : word;
  std::string const near = nearest(name, names);
  std::string const program = command.name.empty() ? "reshard" : "reshard " + command.name;
  return fmt::format("`{}` has no option {}. {}`{} --help` shows its options.", program, name,
                     near.empty() ? "" : fmt::format("Did you mean {}? ", near), program);
}

}  // namespace

std::string unknown_command(CommandTable const& table, std::string const& word) {
  std::vector<std::string> names;
  for (CommandFacts const& command : table)
    if (!command.name.empty()) names.push_back(command.name);
  std::string const near = nearest(word, names);
  return fmt::format("unknown command '{}'. {}`reshard --help` lists the commands.", word,
                     near.empty() ? "" : fmt::format("Did you mean {}? ", near));
}

std::string unknown_word(CommandTable const& table, std::span<std::string const> words,
                         std::span<std::string const> hidden) {
  auto const is_hidden = [&](std::string const& word) {
    return std::find(hidden.begin(), hidden.end(), word) != hidden.end();
  };
  CommandFacts const* command = &table.front();
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string const& word = words[i];
    if (word == "--") return "";
    if (is_option(word)) {
      OptionFacts const* option = option_named(*command, name_in(word));
      if (option == nullptr && is_hidden(word)) continue;
      if (option == nullptr) return unknown_option(*command, word);
      if (takes_next_word(*option, word)) ++i;
    } else if (command == &table.front()) {
      if (is_hidden(word)) return "";
      command = command_named(table, word);
      if (command == nullptr) return unknown_command(table, word);
    }
  }
  return "";
}

}  // namespace reshard
