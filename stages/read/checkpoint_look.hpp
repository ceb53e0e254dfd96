#pragma once

#include <filesystem>
#include <optional>

namespace reshard {

/// Whether a folder holds what one of the readers would open, by the names in it.
bool looks_like_checkpoint(std::filesystem::path const& folder);

/// The folder of a file that is to be written, or one of the two above it, when that is a checkpoint. HDF5 files make a folder one only beside a
/// manifest of ours: a single file may lie in any folder. `file` is absolute and normal. A folder that may not be listed is none.
std::optional<std::filesystem::path> enclosing_checkpoint(std::filesystem::path const& file);

}  // namespace reshard
