#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "core/base/integers.hpp"
#include "core/containers/hdf5/container.hpp"

namespace reshard::hdf5 {

/// The name that part `part` of `parts`, counted from 1, gets in a target.
std::string part_file_name(Index part, Index parts);

/// The value of a root attribute; "" where there is none.
std::string text_of(Found const& part, std::string_view key);
/// The same as a number; an Error of kind source where it is none.
Index number_of(Found const& part, std::string_view key, std::filesystem::path const& path);

/// The files of a folder are the parts of one checkpoint of ours, each of them once. An Error of
/// kind source names those that are missing, or the file that is too many. Pre: one for each file,
/// at least one, all of them containers of ours.
void check_parts(std::span<Found const> parts, std::span<std::filesystem::path const> files,
                 std::filesystem::path const& folder);

}  // namespace reshard::hdf5
