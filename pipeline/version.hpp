#pragma once

#include <string>

#include "core/base/text/json.hpp"

namespace reshard {

/// "0.1.0".
std::string version_number();
/// Of the commit, or of the build where there is none: "2026-11-22".
std::string version_date();
/// Version, commit, compiler and flags, MPI as it runs, and under `libraries` the version of each
/// that it was built with.
Json version_json();
std::string version_text();

}  // namespace reshard
