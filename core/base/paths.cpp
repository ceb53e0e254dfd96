#include "core/base/paths.hpp"

#include <algorithm>

namespace reshard {

namespace fs = std::filesystem;

fs::path normal_path(fs::path const& path) {
  fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

fs::path full_path(fs::path const& path) { return normal_path(fs::absolute(path)); }

fs::path resolved_path(fs::path const& path, std::error_code& problem) {
  fs::path const absolute = fs::absolute(path, problem);
  fs::path const resolved = fs::weakly_canonical(absolute, problem);
  return normal_path(problem ? absolute : resolved);
}

fs::path resolved_path(fs::path const& path) {
  std::error_code ignored;
  return resolved_path(path, ignored);
}

bool holds(fs::path const& folder, fs::path const& path) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

}  // namespace reshard
