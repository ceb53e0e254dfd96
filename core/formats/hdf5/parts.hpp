#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "core/base/tables/integers.hpp"
#include "core/containers/hdf5/container.hpp"

namespace reshard::hdf5 {

/// The name that part `part` of `parts`, counted from 1, gets in a target.
std::string part_file_name(Index part, Index parts);

/// The value of a root attribute; "" if there is none.
std::string text_of(Found const& part, std::string_view key);
/// The value of a root attribute as a number; an Error of kind source if it is not one.
Index number_of(Found const& part, std::string_view key, std::filesystem::path const& path);

/// Checks that the files of a folder are the parts of one checkpoint of ours, each once. An Error
/// of kind source names missing parts, or the surplus file. Pre: one for each file, at least one,
/// all of them containers of ours.
void check_parts(std::span<Found const> parts, std::span<std::filesystem::path const> files,
                 std::filesystem::path const& folder);

}  // namespace reshard::hdf5
