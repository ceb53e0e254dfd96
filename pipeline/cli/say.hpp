#pragma once

#include <string>
#include <vector>

namespace reshard {

/// Writes to stderr. Control characters but newlines and tabs are escaped: names from a file must
/// not steer the terminal.
void say(std::string const& text);

/// A line for each warning.
void warn(std::vector<std::string> const& warnings);

}  // namespace reshard
