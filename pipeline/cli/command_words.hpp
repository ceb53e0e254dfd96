#pragma once

#include <span>
#include <string>

#include "pipeline/cli/command_table.hpp"

namespace reshard {

/// The fault of the words of a command line (without the program's name) before their meaning is
/// parsed: a command or an option that does not exist. "" when all are known. `hidden` are commands,
/// and options of any command, that the table leaves out; the words behind such a command are not
/// checked.
std::string unknown_word(CommandTable const& table, std::span<std::string const> words,
                         std::span<std::string const> hidden);

/// "Unknown command 'rum'. Did you mean run? …"
std::string unknown_command(CommandTable const& table, std::string const& word);

}  // namespace reshard
