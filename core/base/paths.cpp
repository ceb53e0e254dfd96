#include "core/base/paths.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "core/base/tree.hpp"
#include "core/base/workers.hpp"

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

namespace {

/// Resolves what lies in one folder.
class ResolvedFolder {
 public:
  /// Many entries are worth a listing, which says which of them are links; so is one that is known.
  ResolvedFolder(fs::path resolved, fs::path const& folder, std::size_t entries)
      : resolved_(std::move(resolved)) {
    constexpr std::size_t worth_a_listing = 8;
    std::error_code problem;
    auto const known = known_listing(folder);
    if (!known && entries < worth_a_listing) return;
    for (TreeEntry const& entry : known ? *known : known_listing_of(folder, problem))
      types_.emplace(entry.path.filename(), entry.type);
  }

  fs::path of(fs::path const& path) const {
    if (path.filename().empty() || path.filename() == "." || path.filename() == "..")
      return resolved_path(path);
    auto const known = types_.find(path.filename());
    std::error_code problem;
    auto const type =
        known != types_.end() ? known->second : fs::symlink_status(path, problem).type();
    if (type == fs::file_type::regular || type == fs::file_type::directory)
      return resolved_ / path.filename();
    return resolved_path(path);
  }

 private:
  fs::path resolved_;
  std::map<fs::path, fs::file_type> types_;
};

/// By folder, what lies in them.
using PathsByFolder = std::map<fs::path, std::vector<fs::path>>;

PathsByFolder by_folder(std::vector<fs::path> const& paths) {
  PathsByFolder result;
  for (fs::path const& path : paths) result[path.parent_path()].push_back(path);
  return result;
}

}  // namespace

std::vector<fs::path> resolved_paths(std::vector<fs::path> const& paths) {
  std::vector<fs::path> full;
  for (fs::path const& path : paths) full.push_back(fs::absolute(path));
  PathsByFolder const folders = by_folder(full);
  std::vector<fs::path> names;
  for (auto const& [folder, ignored] : folders) names.push_back(folder);
  std::map<fs::path, ResolvedFolder> above;
  for (auto const& [folder, inside] : by_folder(names))
    above.try_emplace(folder, resolved_path(folder), folder, inside.size());
  std::vector<std::unique_ptr<ResolvedFolder>> resolved(names.size());
  overlapped(names.size(), [&](std::size_t i) {
    fs::path const& folder = names[i];
    resolved[i] = std::make_unique<ResolvedFolder>(above.at(folder.parent_path()).of(folder),
                                                   folder, folders.at(folder).size());
  });
  overlapped(full.size(), [&](std::size_t i) {
    auto const folder = std::ranges::lower_bound(names, full[i].parent_path());
    full[i] = resolved[static_cast<std::size_t>(folder - names.begin())]->of(full[i]);
  });
  return full;
}

bool holds(fs::path const& folder, fs::path const& path) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

}  // namespace reshard
