#pragma once

#include <algorithm>
#include <filesystem>

namespace reshard {

/// Whether `path` is `folder` or lies below it. Both are absolute and normal, links resolved.
inline bool holds(std::filesystem::path const& folder, std::filesystem::path const& path) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

/// Absolute and normal, without a slash at the end; links are left as they are.
inline std::filesystem::path full_path(std::filesystem::path const& path) {
  std::filesystem::path const normal = std::filesystem::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

}  // namespace reshard
