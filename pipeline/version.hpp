#pragma once

#include <string>

#include "core/base/json.hpp"

namespace reshard {

/// Version, commit and the libraries it was built with.
Json version_json();
std::string version_text();

}  // namespace reshard
