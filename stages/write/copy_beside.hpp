#pragma once

#include <filesystem>

namespace reshard {

/// Copies a file, or a folder with its content, and syncs the copies. Links are not followed: a
/// link is an Error of kind source, as is any entry that is neither file nor folder.
void copy_beside(std::filesystem::path const& from, std::filesystem::path const& to);

}  // namespace reshard
