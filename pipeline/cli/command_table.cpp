#include "pipeline/cli/command_table.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace reshard {
namespace {

constexpr std::size_t columns = 80;
/// Where texts begin beside names.
constexpr std::size_t name_columns = 24;
constexpr std::size_t command_columns = 14;

constexpr std::array<ExitCode, 12> codes = {
    {{0, "done; verify, diff: the same; suspects: none"},
     {1, "verify, diff: something differs; suspects: there are some"},
     {2, "the command line or the job file is wrong"},
     {3, "the source is damaged, incomplete or not supported"},
     {4, "the target exists or is locked"},
     {5, "input or output failed"},
     {6, "not enough disk, memory or ranks"},
     {7, "self-check: the result did not verify; nothing was published"},
     {8, "a rank stalled or was lost"},
     {9, "nightly: the target is complete, the command nightly.after failed"},
     {70, "a bug of reshard"},
     {75, "interrupted; run again"}}};

bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

/// A name, and its text beside it or, when the name is long, below it. A longer one is cut behind a
/// choice: "a|b|".
std::string row(std::string const& name, std::string_view text, std::size_t indent) {
  std::string line = "  " + name;
  std::size_t const cut = line.size() > columns ? line.rfind('|', columns - 1) : std::string::npos;
  if (cut != std::string::npos) line.insert(cut + 1, "\n" + std::string(indent, ' '));
  if (cut != std::string::npos || line.size() + 2 > indent)
    line += "\n" + std::string(indent, ' ');
  else
    line.append(indent - line.size(), ' ');
  return line + wrapped(text, columns, indent, indent) + "\n";
}

std::string left_side(OptionFacts const& option) {
  return fmt::format("{}{}{}", fmt::join(option.names, ", "), option.value.empty() ? "" : " ",
                     option.value);
}

std::string rows_of(CommandFacts const& command) {
  std::string text;
  for (bool const positional : {true, false})
    for (OptionFacts const& option : command.options)
      if (option.positional() == positional)
        text += row(left_side(option), option.text, name_columns);
  return text;
}

std::string examples_of(CommandFacts const& command) {
  std::string text;
  for (std::size_t at = 0; at < command.examples.size();) {
    std::size_t const end = std::min(command.examples.find('\n', at), command.examples.size());
    text += fmt::format("{}  {}\n", text.empty() ? "\nExample:\n" : "",
                        command.examples.substr(at, end - at));
    at = end + 1;
  }
  return text;
}

std::string commands_text(CommandTable const& table) {
  std::string text = "\nCommands:\n";
  for (CommandFacts const& command : table)
    if (!command.name.empty()) text += row(command.name, command.text, command_columns);
  return text;
}

std::string exit_codes_text() {
  std::string list;
  for (ExitCode const& code : codes)
    list += fmt::format("{}{} {}", list.empty() ? "" : " | ", code.code, code.text);
  return "\nExit codes: " + wrapped(list, columns, 2, 12) + "\n";
}

}  // namespace

WordKind kind_of_word(std::string_view type_name) {
  bool const upper = std::any_of(type_name.begin(), type_name.end(), is_upper);
  if (type_name.empty()) return WordKind::none;
  if (!upper && type_name.find('|') != std::string_view::npos) return WordKind::choice;
  if (type_name == "KEY=VALUE") return WordKind::setting;
  if (type_name == "MAP") return WordKind::map;
  if (type_name == "N") return WordKind::number;
  if (type_name.starts_with("FILE") || type_name.ends_with(".toml")) return WordKind::file;
  for (std::string_view const place : {"PATH", "SOURCE", "TARGET", "FOLDER"})
    if (type_name.starts_with(place)) return WordKind::path;
  return WordKind::text;
}

std::vector<std::string> choices_of_word(std::string_view type_name) {
  std::vector<std::string> words;
  if (kind_of_word(type_name) != WordKind::choice) return words;
  for (std::size_t at = 0; at <= type_name.size();) {
    std::size_t const end = std::min(type_name.find('|', at), type_name.size());
    words.emplace_back(type_name.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

std::string synopsis(CommandFacts const& command) {
  std::string text = command.name.empty() ? "reshard [OPTIONS] [COMMAND]"
                                          : fmt::format("reshard {} [OPTIONS]", command.name);
  for (OptionFacts const& option : command.options) {
    if (!option.positional()) continue;
    std::string const word = option.several ? option.names.front() + "..." : option.names.front();
    text += option.required ? " " + word : fmt::format(" [{}]", word);
  }
  return text;
}

std::span<ExitCode const> exit_codes() { return codes; }

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent,
                    std::size_t used) {
  std::string out;
  std::size_t column = used;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t const end = std::min(text.find(' ', at), text.size());
    std::string_view const word = text.substr(at, end - at);
    if (at > 0 && column + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (at > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    at = end + 1;
  }
  return out;
}

std::string help_text(CommandTable const& table, std::string_view name) {
  auto const found = std::find_if(table.begin(), table.end(), [&](CommandFacts const& command) {
    return command.name == name;
  });
  CommandFacts const& command = found == table.end() ? table.front() : *found;
  std::string text = fmt::format("{}\n\nUsage: {}\n\n{}", wrapped(command.text, columns, 0, 0),
                                 synopsis(command), rows_of(command));
  if (command.name.empty()) text += commands_text(table);
  text += examples_of(command);
  return command.name.empty() ? text + exit_codes_text() : text;
}

}  // namespace reshard
