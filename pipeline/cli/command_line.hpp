#pragma once

#include <string>

#include "pipeline/cli/command.hpp"

namespace reshard {

/// The meaning of a command line: a command, or a text to print at once with the exit code that
/// goes with it.
struct CommandLine {
  Command* command = nullptr;  ///< of those that were given; null: print `text`
  std::string text;
  int code = 0;
};

/// Understands the command line; its options are written into `commands`. A mistake gives a text
/// with code 2 (to stderr), --help and the like one with code 0.
CommandLine parse_command_line(int argc, char const* const* argv, Commands const& commands);

}  // namespace reshard
