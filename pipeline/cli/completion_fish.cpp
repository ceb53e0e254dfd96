#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pipeline/cli/completion.hpp"

namespace reshard {
namespace {

/// 'text' for fish, where a backslash is special inside quotes, too.
std::string fish_quoted(std::string_view text) {
  std::string out = "'";
  for (char const c : text)
    out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out + "'";
}

/// What follows a word of this kind: -x takes no files, -r takes them as well.
std::string action(OptionFacts const& option) {
  switch (option.kind) {
    case WordKind::choice:
      return fmt::format(" -x -a {}",
                         fish_quoted(fmt::format("{}", fmt::join(option.choices, " "))));
    case WordKind::map: return " -r -F -a '(__reshard_maps)'";
    case WordKind::setting: return " -x -a '(__reshard_settings)'";
    case WordKind::file:
    case WordKind::path: return " -r -F";
    case WordKind::none: return "";
    case WordKind::text:
    case WordKind::number: break;
  }
  return " -x";
}

/// One line for each option; `condition` says where it counts.
std::string lines_of(CommandFacts const& command, std::string const& condition) {
  std::string text;
  for (OptionFacts const& option : command.options) {
    if (option.positional()) {
      if (option.kind == WordKind::choice || option.kind == WordKind::map)
        text +=
            fmt::format("complete -c reshard -n {}{}\n", fish_quoted(condition), action(option));
      else if (option.kind == WordKind::file || option.kind == WordKind::path)
        text += fmt::format("complete -c reshard -n {} -F\n", fish_quoted(condition));
      continue;
    }
    std::string names;
    for (std::string const& name : option.names)
      names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    text += fmt::format("complete -c reshard -n {}{}{} -d {}\n", fish_quoted(condition), names,
                        action(option), fish_quoted(option.text));
  }
  return text;
}

std::string settings_function() {
  std::string text = "function __reshard_settings\n";
  for (SettingFacts const& setting : setting_facts()) {
    std::vector<std::string> words;
    for (std::string const& choice : setting.choices)
      words.push_back(fish_quoted(fmt::format("{}={}\t{}", setting.key, choice, setting.text)));
    if (words.empty())
      words.push_back(fish_quoted(fmt::format("{}=\t{}", setting.key, setting.text)));
    text += fmt::format("    printf '%s\\n' {}\n", fmt::join(words, " "));
  }
  return text + "end\n";
}

constexpr std::string_view maps = R"sh(function __reshard_maps
    echo auto
    echo none
    for folder in $RESHARD_MAPS (dirname (command -v reshard))/../share/reshard/models
        for file in $folder/*.toml
            basename $file .toml
        end
    end
end
)sh";

}  // namespace

std::string fish_completion(CommandTable const& table) {
  std::string text = "# fish completion of reshard; made by `reshard completion fish`\n\n" +
                     std::string(maps) + "\n" + settings_function();
  text += "\ncomplete -c reshard -f\n" + lines_of(table.front(), "__fish_use_subcommand");
  for (CommandFacts const& command : table) {
    if (command.name.empty()) continue;
    text += fmt::format("complete -c reshard -n __fish_use_subcommand -a {} -d {}\n", command.name,
                        fish_quoted(command.text));
    text += lines_of(command, "__fish_seen_subcommand_from " + command.name);
  }
  return text;
}

}  // namespace reshard
