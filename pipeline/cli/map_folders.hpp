#pragma once

#include <filesystem>
#include <vector>

namespace reshard {

/// Where maps are: RESHARD_MAPS, then share/reshard/models of the folder above the program's own; a
/// build folder has a link of that name.
std::vector<std::filesystem::path> map_folders();

}  // namespace reshard
