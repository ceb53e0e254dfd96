#pragma once

#include <CLI/App.hpp>

#include "pipeline/cli/command_table.hpp"

namespace reshard {

/// The table of a configured command line. The footer of an app is its examples.
CommandTable command_table(CLI::App const& app);

}  // namespace reshard
