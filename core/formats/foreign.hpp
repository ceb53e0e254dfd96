#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace reshard {

/// The sentence, after the path, about a folder of no known format: its program, and the path to
/// name instead; never "". `names`: its entries, sorted, folders with a trailing '/'.
/// `checkpoints`: those that are checkpoints of a known format. `signs`: the signs of each known
/// format.
std::string foreign_folder(std::filesystem::path const& path, std::span<std::string const> names,
                           std::span<std::string const> checkpoints,
                           std::span<std::string_view const> signs);

/// The sentence about a folder with names that only another program uses; "" if there are none.
std::string folder_of_another_program(std::filesystem::path const& path,
                                      std::span<std::string const> names);

/// The sentence about a file that is not an HDF5 file; never "".
std::string foreign_file(std::filesystem::path const& path);

}  // namespace reshard
