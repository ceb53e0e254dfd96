#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pipeline/cli/command_table.hpp"

namespace reshard {

/// The completion script for "bash", "zsh" or "fish": commands, options, their choices, files,
/// names of maps, keys of the job file with their values. Pre: one of the three.
std::string completion_script(std::string_view shell, CommandTable const& table);

/// What a script completes of the job file.
struct SettingFacts {
  std::string key;                   ///< "target.format"
  std::vector<std::string> choices;  ///< none where any value can stand
  std::string text;                  ///< the first sentence of its comment
  bool path = false;                 ///< the value is a path
};
std::vector<SettingFacts> setting_facts();

std::string bash_completion(CommandTable const& table);
std::string zsh_completion(CommandTable const& table);
std::string fish_completion(CommandTable const& table);

/// 'text' for a shell: nothing in it is special, quotes of its own included.
std::string shell_quoted(std::string_view text);

/// The shell function _reshard_maps that prints the names of the maps, a line each: from
/// RESHARD_MAPS and from beside the installed program.
std::string_view maps_function();

}  // namespace reshard
