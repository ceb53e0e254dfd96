#include "core/base/tree.hpp"

#include <algorithm>
#include <utility>

#include "core/base/activity.hpp"
#include "core/base/workers.hpp"

namespace reshard {

namespace fs = std::filesystem;

namespace {

/// From the listing, where that says it; symlink_status() would ask again.
fs::file_type type_of(fs::directory_entry const& entry) {
  std::error_code unknown;
  if (entry.is_symlink(unknown)) return fs::file_type::symlink;
  if (entry.is_directory(unknown)) return fs::file_type::directory;
  if (entry.is_regular_file(unknown)) return fs::file_type::regular;
  return entry.symlink_status(unknown).type();
}

}  // namespace

std::vector<TreeEntry> listing_of(fs::path const& folder, std::error_code& problem) {
  FileStep const step("listing", folder);
  std::vector<TreeEntry> entries;
  problem.clear();
  fs::directory_iterator entry(folder, problem);
  for (; !problem && entry != fs::directory_iterator(); entry.increment(problem))
    entries.push_back({entry->path(), type_of(*entry)});
  if (problem) entries.clear();
  return entries;
}

std::vector<TreeEntry> tree_of(fs::path const& folder, std::error_code& problem) {
  std::vector<TreeEntry> all;
  problem.clear();
  for (std::vector<fs::path> level = {folder}; !level.empty();) {
    std::vector<std::vector<TreeEntry>> found(level.size());
    std::vector<std::error_code> problems(level.size());
    overlapped(level.size(), [&](std::size_t i) { found[i] = listing_of(level[i], problems[i]); });
    level.clear();
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (problems[i] && !problem) problem = problems[i];
      for (TreeEntry& entry : found[i]) {
        if (entry.type == fs::file_type::directory) level.push_back(entry.path);
        all.push_back(std::move(entry));
      }
    }
  }
  std::ranges::sort(all, {}, &TreeEntry::path);
  return all;
}

}  // namespace reshard
