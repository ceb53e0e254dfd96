#pragma once

#include <string>

#include "core/base/text/json.hpp"

namespace reshard {

/// A YAML 1.1 document of a value, in block style, which parse_yaml() and PyYAML's safe loader read
/// back as the same value. Texts are quoted.
std::string yaml_text(Json const& value);

}  // namespace reshard
