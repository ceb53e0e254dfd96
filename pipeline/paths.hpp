#pragma once

#include <algorithm>
#include <filesystem>

namespace reshard {

/// Whether `path` is `folder` or lies below it. Both are absolute and normal, links resolved.
inline bool holds(std::filesystem::path const& folder, std::filesystem::path const& path) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

}  // namespace reshard
