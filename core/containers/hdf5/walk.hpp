#pragma once

#include <string>
#include <string_view>

#include "core/containers/hdf5/container.hpp"

namespace reshard::hdf5 {

/// Reads the content of a file through libhdf5. Only for trusted files, or in a process that may
/// crash: callers use read_file(). `path` is opened by libhdf5, `place` is its name in errors;
/// `opened` is called as soon as the file is open, before any content is read.
Found walk(std::string const& path, std::string_view place, void (*opened)());

}  // namespace reshard::hdf5
