#include "pipeline/cli/say.hpp"

#include <cstdio>

#include "core/base/text.hpp"

namespace reshard {

void say(std::string const& text) {
  std::string const shown = without_controls(text, "\n\t");
  std::fwrite(shown.data(), 1, shown.size(), stderr);
}

void warn(std::vector<std::string> const& warnings) {
  for (std::string const& warning : warnings) say("warning: " + without_controls(warning) + "\n");
}

}  // namespace reshard
