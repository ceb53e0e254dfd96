#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace reshard {

/// What to say of a folder that none of the formats knows, as a sentence behind its path: which
/// program it is of, and what to name instead. "" when it looks like a damaged or nested checkpoint
/// of Megatron, whose reader says more. `names`: what is in it, sorted, folders with a '/' behind.
std::string foreign_folder(std::filesystem::path const& path, std::span<std::string const> names);

/// The same of a file that is no HDF5 file; never "".
std::string foreign_file(std::filesystem::path const& path);

}  // namespace reshard
