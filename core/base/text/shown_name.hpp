#pragma once

#include <string>

#include "core/base/text/json.hpp"

namespace reshard {

/// A name from a file as a terminal may see it: itself, or its JSON text where control characters
/// must be escaped.
inline std::string shown_name(std::string const& name) {
  std::string text = json_quoted(name);
  return text.size() == name.size() + 2 ? name : text;
}

}  // namespace reshard
