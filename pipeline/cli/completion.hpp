#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/cli/command_table.hpp"

namespace reshard {

/// "bash", "zsh", "fish".
std::vector<std::string> completion_shells();

/// The script that makes a shell ask `reshard __complete SHELL WORD…` for candidates. Pre: the
/// shell is one of the list.
std::string completion_script(std::string_view shell);

/// The candidates for the last word of a command line, `words` without the program; a line each,
/// as the script of the shell reads it. A line ":files GLOB" means files whose names match, and
/// folders. Names of maps are those of the files *.toml in `map_folders`.
std::string candidates(std::string_view shell, std::span<std::string const> words,
                       CommandTable const& table,
                       std::span<std::filesystem::path const> map_folders);

}  // namespace reshard
