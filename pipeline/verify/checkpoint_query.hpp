#pragma once

#include <filesystem>
#include <string>

#include "core/mapping/map_library.hpp"

namespace reshard {

/// One checkpoint that a command reads, and how its tensors are understood.
struct CheckpointQuery {
  std::filesystem::path path = {};
  std::string map = "auto";           ///< as in a job file; "none": tensors by their stored names
  std::filesystem::path config = {};  ///< config.json or its folder, where the checkpoint has none
  std::string prefix = {};            ///< of stored names: only those are read, and it is cut off
  MapLibrary library = {};
};

}  // namespace reshard
