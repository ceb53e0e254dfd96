#pragma once

#include "pipeline/cli/command.hpp"

namespace reshard {

/// Understands the command line, starts MPI, carries the command out on every rank and says what
/// went wrong. The exit code of the program. It takes over the signals that end a job in order.
/// Called once, by main().
int run_program(int argc, char** argv, Commands const& commands);

}  // namespace reshard
