#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pipeline/cli/completion.hpp"

namespace reshard {
namespace {

/// What to offer for a word of this kind, as the body of a `case` branch. Where nothing is set,
/// readline completes names of files itself.
std::string offer(OptionFacts const& option) {
  switch (option.kind) {
    case WordKind::choice: return fmt::format("_reshard_words {}", fmt::join(option.choices, " "));
    case WordKind::map: return "_reshard_words auto none $(_reshard_maps); _reshard_files '*.toml'";
    case WordKind::setting: return "_reshard_setting";
    case WordKind::file:
      return option.names.front().ends_with(".toml") ? "_reshard_files '*.toml'"
                                                     : "_reshard_files '*'";
    case WordKind::path: return "_reshard_files '*'";
    case WordKind::none:
    case WordKind::text:
    case WordKind::number: break;
  }
  return ":";
}

/// The branch of one command: what follows an option, else options or the positional.
std::string branch_of(CommandFacts const& command) {
  std::string values;
  std::string names;
  std::string positional = ":";
  for (OptionFacts const& option : command.options) {
    if (option.positional()) {
      positional = offer(option);
      continue;
    }
    for (std::string const& name : option.names) names += (names.empty() ? "" : " ") + name;
    if (!option.value.empty())
      values +=
          fmt::format("        {}) {}; return ;;\n", fmt::join(option.names, "|"), offer(option));
  }
  return fmt::format(
      "    {})\n{}      if [[ $cur == -* ]]; then _reshard_words {}; else {}; fi\n      ;;\n",
      command.name,
      values.empty() ? "" : fmt::format("      case $prev in\n{}      esac\n", values), names,
      positional);
}

/// A setting is completed in two steps, and with '=' in COMP_WORDBREAKS (its default) it is three
/// words.
std::string setting_function() {
  std::string keys;
  std::string values;
  for (SettingFacts const& setting : setting_facts()) {
    keys += " " + setting.key + "=";
    if (!setting.choices.empty())
      values += fmt::format("    {}) _reshard_words {} ;;\n", setting.key,
                            fmt::join(setting.choices, " "));
    if (setting.path) values += fmt::format("    {}) _reshard_files '*' ;;\n", setting.key);
  }
  return fmt::format(R"sh(_reshard_setting() {{
  if [[ -z $key ]]; then
    _reshard_words{}
    compopt -o nospace 2>/dev/null
    return
  fi
  case $key in
    model.map) _reshard_words auto $(_reshard_maps) ;;
{}  esac
}}
)sh",
                     keys, values);
}

constexpr std::string_view helpers = R"sh(
_reshard_words() {
  local word
  for word in "$@"; do
    [[ $word == "$cur"* ]] && COMPREPLY+=("$head$word")
  done
}

_reshard_files() {
  local file
  compopt -o filenames 2>/dev/null
  while IFS= read -r file; do
    if [[ -d $file || ${file##*/} == $1 ]]; then COMPREPLY+=("$head$file"); fi
  done < <(compgen -f -- "$cur")
}

)sh";

constexpr std::string_view main_function = R"sh(
_reshard() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev='' key='' head='' command='' i
  local at=$COMP_CWORD
  COMPREPLY=()
  # key=value as one word, or as the three that readline makes of it
  if [[ $cur == "=" ]]; then
    cur=''
    at=$((at - 1))
    key=${COMP_WORDS[at]}
  elif ((at > 1)) && [[ ${COMP_WORDS[at - 1]} == "=" ]]; then
    at=$((at - 2))
    key=${COMP_WORDS[at]}
  elif [[ $cur == *=* ]]; then
    key=${cur%%=*}
    head=$key=
    cur=${cur#*=}
  fi
  ((at > 0)) && prev=${COMP_WORDS[at - 1]}
  # --device=cuda
  if [[ $key == --* ]]; then
    prev=$key
    key=''
  fi
  for ((i = 1; i < at; ++i)); do
    if [[ ${COMP_WORDS[i]} != -* ]]; then
      command=${COMP_WORDS[i]}
      break
    fi
  done
  case $command in
)sh";

}  // namespace

std::string bash_completion(CommandTable const& table) {
  std::string top;
  for (CommandFacts const& command : table)
    if (!command.name.empty()) top += " " + command.name;
  std::string options;
  for (OptionFacts const& option : table.front().options)
    for (std::string const& name : option.names) options += " " + name;
  std::string text =
      "# bash completion of reshard; made by `reshard completion bash`\n# shellcheck disable=SC2046,SC2053\n\n" +
      std::string(maps_function());
  text += std::string(helpers) + setting_function() + std::string(main_function);
  for (CommandFacts const& command : table)
    if (!command.name.empty()) text += branch_of(command);
  text += fmt::format(
      "    '') if [[ $cur == -* ]]; then _reshard_words{}; else _reshard_words{}; fi ;;\n", options,
      top);
  return text + "  esac\n}\n\ncomplete -F _reshard reshard\n";
}

}  // namespace reshard
