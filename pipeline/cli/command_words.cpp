#include "pipeline/cli/command_words.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/text/text.hpp"
#include "pipeline/job/job_field.hpp"

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

/// "--layout tp=2" for --tp: sizes of parallel axes are no options of their own. "" for others.
std::string size_of_axis(CommandFacts const& command, std::string const& word,
                         std::string_view next) {
  std::string const name = name_in(word);
  bool const is_axis = std::ranges::any_of(job::fields(), [&](job::Field const& field) {
    return !field.axis.empty() && name == fmt::format("--{}", field.axis);
  });
  if (!is_axis) return "";
  std::string const size = word.size() > name.size()
                               ? word.substr(name.size() + 1)
                               : std::string(next.empty() || next.starts_with('-') ? "N" : next);
  if (option_named(command, "--layout") != nullptr)
    return fmt::format("--layout {}={}", name.substr(2), size);
  if (option_named(command, "--set") != nullptr)
    return fmt::format("--set target.layout.{}={}", name.substr(2), size);
  return "";
}

std::string unknown_option(CommandFacts const& command, std::string const& word,
                           std::string_view next) {
  std::vector<std::string> names;
  for (OptionFacts const& option : command.options)
    if (!option.positional()) names.insert(names.end(), option.names.begin(), option.names.end());
  std::string const name = word.starts_with("--") ? name_in(word) : word;
  std::string near = size_of_axis(command, word, next);
  if (near.empty()) near = nearest(name, names);
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
      if (option == nullptr)
        return unknown_option(*command, word, i + 1 < words.size() ? words[i + 1] : "");
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
