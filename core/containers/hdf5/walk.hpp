#pragma once

#include <string>
#include <string_view>

#include "core/containers/hdf5/container.hpp"

namespace reshard::hdf5 {

/// Asks libhdf5 what a file holds. Only for files that are trusted, or in a process that may crash:
/// read_file() is the way to call it. `path` is what libhdf5 opens, `place` what errors name;
/// `opened` is called as soon as the file is open, before anything in it is looked at.
Found walk(std::string const& path, std::string_view place, void (*opened)());

}  // namespace reshard::hdf5
