#pragma once

#include <filesystem>

#include "pipeline/describe/look.hpp"

namespace reshard {

/// inspect() of HDF5 files: each is read as far as its metadata; what cannot be read is a mismatch.
Inspection inspect_hdf5(std::filesystem::path const& path);

}  // namespace reshard
