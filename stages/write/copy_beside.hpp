#pragma once

#include <filesystem>

namespace reshard {

/// Copies a file, or a folder with everything in it, and syncs what it wrote. Links are not
/// followed out of the source: a link is an Error of kind source, as is anything that is neither
/// file nor folder.
void copy_beside(std::filesystem::path const& from, std::filesystem::path const& to);

}  // namespace reshard
