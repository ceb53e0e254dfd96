#include "core/base/files/tree.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/files/listed_folders.hpp"
#include "core/base/text/shared_text.hpp"
#include "core/base/threads/activity.hpp"
#include "core/base/threads/workers.hpp"

namespace reshard {

namespace fs = std::filesystem;

namespace {

/// From the listing if it has the type; symlink_status() would ask the file system again.
fs::file_type type_of(fs::directory_entry const& entry) {
  std::error_code unknown;
  if (entry.is_symlink(unknown)) return fs::file_type::symlink;
  if (entry.is_directory(unknown)) return fs::file_type::directory;
  if (entry.is_regular_file(unknown)) return fs::file_type::regular;
  return entry.symlink_status(unknown).type();
}

/// An entry of a known listing. Folders of 8,192 ranks have the same few names in them.
struct KnownEntry {
  SharedText name;
  fs::file_type type = fs::file_type::none;
};

/// The listings made while scopes live, by the text of the folder's path: a std::filesystem::path
/// takes some 500 bytes.
struct Known {
  std::mutex mutex;
  std::size_t scopes = 0;
  std::map<std::string, std::vector<KnownEntry>, std::less<>> listings;

  static Known& all() {
    static Known known;
    return known;
  }
};

using Listing = std::vector<TreeEntry>(fs::path const&, std::error_code&);

std::vector<TreeEntry> tree_by(Listing* listing, fs::path const& folder, std::error_code& problem) {
  std::vector<TreeEntry> all;
  problem.clear();
  for (std::vector<fs::path> level = {folder}; !level.empty();) {
    std::vector<std::vector<TreeEntry>> found(level.size());
    std::vector<std::error_code> problems(level.size());
    overlapped(level.size(), [&](std::size_t i) { found[i] = listing(level[i], problems[i]); });
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
  return tree_by(&listing_of, folder, problem);
}

KnownListings::KnownListings() {
  std::lock_guard const lock(Known::all().mutex);
  ++Known::all().scopes;
}

KnownListings::~KnownListings() {
  std::lock_guard const lock(Known::all().mutex);
  if (--Known::all().scopes == 0) Known::all().listings.clear();
}

std::optional<std::vector<TreeEntry>> known_listing(fs::path const& folder) {
  std::lock_guard const lock(Known::all().mutex);
  auto const found = Known::all().listings.find(folder.native());
  if (found == Known::all().listings.end()) return std::nullopt;
  std::vector<TreeEntry> entries;
  entries.reserve(found->second.size());
  for (KnownEntry const& entry : found->second)
    entries.push_back({folder / entry.name.text(), entry.type});
  return entries;
}

std::vector<TreeEntry> known_listing_of(fs::path const& folder, std::error_code& problem) {
  problem.clear();
  if (auto known = known_listing(folder)) return *std::move(known);
  std::optional<std::vector<TreeEntry>> listed = listed_entries(folder);
  std::vector<TreeEntry> entries = listed ? *std::move(listed) : listing_of(folder, problem);
  std::lock_guard const lock(Known::all().mutex);
  if (!problem && Known::all().scopes > 0) {
    std::vector<KnownEntry> known;
    known.reserve(entries.size());
    for (TreeEntry const& entry : entries)
      known.push_back({entry.path.filename().native(), entry.type});
    Known::all().listings.emplace(folder.native(), std::move(known));
  }
  return entries;
}

std::vector<TreeEntry> known_tree_of(fs::path const& folder, std::error_code& problem) {
  return tree_by(&known_listing_of, folder, problem);
}

}  // namespace reshard
