#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pipeline/cli/completion.hpp"

namespace reshard {
namespace {

/// In a specification of _arguments or _describe some characters end a part.
std::string escaped(std::string_view text) {
  std::string out;
  for (char const c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string action(OptionFacts const& option) {
  switch (option.kind) {
    case WordKind::choice: return fmt::format("({})", fmt::join(option.choices, " "));
    case WordKind::map: return "_reshard_map";
    case WordKind::setting: return "_reshard_setting";
    case WordKind::file:
      return option.names.front().ends_with(".toml") ? "_files -g \"*.toml\"" : "_files";
    case WordKind::path: return "_files";
    case WordKind::none:
    case WordKind::text:
    case WordKind::number: break;
  }
  return " ";
}

std::string specification(OptionFacts const& option) {
  std::string const what = escaped(option.positional() ? option.names.front() : option.value);
  if (option.positional())
    return shell_quoted(fmt::format("{}:{}:{}", option.several ? "*" : "", what, action(option)));
  std::string const follows =
      option.value.empty() ? "" : fmt::format(":{}:{}", what, action(option));
  std::string all;
  for (std::string const& name : option.names) {
    std::string const others =
        option.several ? "*" : fmt::format("({})", fmt::join(option.names, " "));
    all += (all.empty() ? "" : " ") +
           shell_quoted(fmt::format("{}{}[{}]{}", others, name, escaped(option.text), follows));
  }
  return all;
}

/// Options first: _arguments numbers the positionals in their order.
std::string specifications(CommandFacts const& command, std::string_view indent) {
  std::string text;
  for (bool const positional : {false, true})
    for (OptionFacts const& option : command.options)
      if (option.positional() == positional)
        text += fmt::format(" \\\n{}{}", indent, specification(option));
  return text;
}

std::string setting_function() {
  std::string keys;
  std::string values;
  for (SettingFacts const& setting : setting_facts()) {
    keys += fmt::format("    {}\n",
                        shell_quoted(fmt::format("{}:{}", setting.key, escaped(setting.text))));
    if (!setting.choices.empty())
      values +=
          fmt::format("      {}) compadd -- {} ;;\n", setting.key, fmt::join(setting.choices, " "));
    if (setting.path) values += fmt::format("      {}) _files ;;\n", setting.key);
  }
  return fmt::format(R"sh(_reshard_setting() {{
  local -a keys
  keys=(
{})
  if compset -P '*='; then
    case ${{IPREFIX%=}} in
      model.map) _reshard_map ;;
{}    esac
  else
    _describe -t keys 'key of the job file' keys -S =
  fi
}}
)sh",
                     keys, values);
}

}  // namespace

std::string zsh_completion(CommandTable const& table) {
  std::string text =
      "#compdef reshard\n# zsh completion of reshard; made by `reshard completion zsh`\n\n" +
      std::string(maps_function());
  text +=
      "\n_reshard_map() {\n  compadd -- auto none ${(f)\"$(_reshard_maps)\"}\n  _files -g \"*.toml\"\n}\n\n" +
      setting_function();
  text +=
      "\n_reshard() {\n  local curcontext=$curcontext state line\n  local -a commands\n  typeset -A opt_args\n  commands=(\n";
  for (CommandFacts const& command : table)
    if (!command.name.empty())
      text += fmt::format("    {}\n",
                          shell_quoted(fmt::format("{}:{}", command.name, escaped(command.text))));
  text += fmt::format("  )\n  _arguments -C{} \\\n    '1: :->command' \\\n    '*:: :->arguments'\n",
                      specifications(table.front(), "    "));
  text +=
      "  case $state in\n    command) _describe -t commands command commands ;;\n    arguments)\n      case $words[1] in\n";
  for (CommandFacts const& command : table)
    if (!command.name.empty())
      text += fmt::format("        {}) _arguments{} ;;\n", command.name,
                          specifications(command, "          "));
  return text +
         "      esac\n      ;;\n  esac\n}\n\nif [ \"$funcstack[1]\" = _reshard ]; then\n  _reshard \"$@\"\nelse\n  compdef _reshard reshard\nfi\n";
}

}  // namespace reshard
