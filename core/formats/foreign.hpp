#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace reshard {

/// What to say of a folder that none of the formats knows, as a sentence behind its path: which
/// program it is of, and what to name instead; never "". `names`: what is in it, sorted, folders
/// with a '/' behind. `checkpoints`: which of them are checkpoints of a known format. `signs`: what
/// a checkpoint of each known format has.
std::string foreign_folder(std::filesystem::path const& path, std::span<std::string const> names,
                           std::span<std::string const> checkpoints,
                           std::span<std::string_view const> signs);

/// The same of a folder with names that only another program gives; "" where there are none.
std::string folder_of_another_program(std::filesystem::path const& path,
                                      std::span<std::string const> names);

/// The same of a file that is no HDF5 file; never "".
std::string foreign_file(std::filesystem::path const& path);

}  // namespace reshard
