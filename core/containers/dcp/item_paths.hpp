#pragma once

#include <filesystem>
#include <vector>

#include "core/containers/dcp/directory.hpp"

namespace reshard::dcp {

/// The paths of the files in metadata.files. A link that leads out of the checkpoint
/// (core/base/member_file.hpp) is an Error of kind source.
std::vector<std::filesystem::path> item_paths(Directory const& directory, Metadata const& metadata);

}  // namespace reshard::dcp
