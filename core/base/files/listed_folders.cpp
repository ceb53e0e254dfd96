#include "core/base/files/listed_folders.hpp"

#include <cerrno>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "core/base/files/paths.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/threads/activity.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

thread_local ListedFolders* innermost = nullptr;

fs::file_type type_of(unsigned char listed) {
  switch (listed) {
    case DT_REG: return fs::file_type::regular;
    case DT_DIR: return fs::file_type::directory;
    case DT_LNK: return fs::file_type::symlink;
    default: return fs::file_type::unknown;
  }
}

/// Absolute, without a slash at the end. Empty for one with parts that a comparison of texts would
/// mistake.
fs::path comparable(fs::path path) {
  std::error_code problem;
  if (path.is_relative()) path = fs::absolute(path, problem);
  if (!path.has_filename()) path = path.parent_path();
  for (fs::path const& part : path)
    if (problem || part.empty() || part == "." || part == "..") return {};
  return path;
}

/// Whether the entries can be accessed: a folder may be readable (listed) but not searchable.
bool is_searchable(fs::path const& folder) {
  return ::faccessat(AT_FDCWD, folder.c_str(), X_OK, AT_EACCESS) == 0;
}

}  // namespace

ListedFolders::ListedFolders(fs::path root)
    : before_(std::exchange(innermost, this)), root_(comparable(std::move(root))) {}

ListedFolders::~ListedFolders() { innermost = before_; }

ListedFolders::Names ListedFolders::list(fs::path const& folder, std::error_code& problem) {
  FileStep const step("listing", folder);
  Names names;
  problem.clear();
  DIR* const open = ::opendir(folder.c_str());
  if (open == nullptr) {
    problem.assign(errno, std::generic_category());
    return names;
  }
  errno = 0;
  while (dirent const* const entry = ::readdir(open)) {
    std::string const name = entry->d_name;
    if (name != "." && name != "..") names.emplace(name, type_of(entry->d_type));
    errno = 0;
  }
  if (errno != 0) problem.assign(errno, std::generic_category());
  ::closedir(open);
  if (problem) names.clear();
  return names;
}

ListedFolders::Names const* ListedFolders::listing_in_scope(fs::path const& folder) {
  for (ListedFolders* scope = innermost; scope != nullptr; scope = scope->before_)
    if (auto const known = scope->listings_.find(folder); known != scope->listings_.end())
      return &known->second;
  ListedFolders* keeper = nullptr;
  for (ListedFolders* scope = innermost; scope != nullptr; scope = scope->before_)
    if (!scope->failed_ && scope->root_ == folder) keeper = scope;
  if (keeper != nullptr) {
    std::error_code problem;
    Names names = list(folder, problem);
    keeper->failed_ = problem || !is_searchable(folder);
    return keeper->failed_ ? nullptr
                           : &keeper->listings_.emplace(folder, std::move(names)).first->second;
  }
  keeper = keeper_of(folder);
  if (keeper == nullptr || keeper->root_ == folder) return nullptr;
  auto const known = known_listing(folder);
  if (!known || !is_searchable(folder)) return nullptr;
  Names names;
  for (TreeEntry const& entry : *known) names.emplace(entry.path.filename().string(), entry.type);
  return &keeper->listings_.emplace(folder, std::move(names)).first->second;
}

ListedFolders* ListedFolders::keeper_of(fs::path const& path) {
  ListedFolders* keeper = nullptr;
  for (ListedFolders* scope = innermost; scope != nullptr; scope = scope->before_)
    if (!scope->root_.empty() && holds(scope->root_, path)) keeper = scope;
  return keeper;
}

std::optional<fs::file_type> listed_type(fs::path const& path) {
  if (innermost == nullptr) return std::nullopt;
  fs::path const full = comparable(path);
  if (full.empty() || ListedFolders::keeper_of(full) == nullptr) return std::nullopt;
  auto const* names = ListedFolders::listing_in_scope(full.parent_path());
  if (names == nullptr) {
    auto const above = listed_type(full.parent_path());
    bool const nothing_below = above == fs::file_type::not_found || above == fs::file_type::regular;
    return nothing_below ? std::optional(fs::file_type::not_found) : std::nullopt;
  }
  auto const entry = names->find(full.filename().string());
  if (entry == names->end()) return fs::file_type::not_found;
  if (entry->second == fs::file_type::unknown) return std::nullopt;
  return entry->second;
}

bool is_listed_folder(fs::path const& path) {
  if (innermost == nullptr) return false;
  fs::path const full = comparable(path);
  return !full.empty() && ListedFolders::listing_in_scope(full) != nullptr;
}

std::optional<std::vector<TreeEntry>> listed_entries(fs::path const& folder) {
  if (innermost == nullptr) return std::nullopt;
  fs::path const full = comparable(folder);
  auto const* names = full.empty() ? nullptr : ListedFolders::listing_in_scope(full);
  if (names == nullptr) return std::nullopt;
  std::vector<TreeEntry> entries;
  for (auto const& [name, type] : *names) {
    if (type == fs::file_type::unknown) return std::nullopt;
    entries.push_back({folder / name, type});
  }
  return entries;
}

std::string text_once(fs::path const& path, std::function<std::string()> const& read) {
  fs::path const full = innermost == nullptr ? fs::path() : comparable(path);
  ListedFolders* const keeper = full.empty() ? nullptr : ListedFolders::keeper_of(full);
  if (keeper == nullptr) return read();
  // Texts that ranks have read together are kept apart from those that one rank has read by itself.
  std::pair const key(full, current_sight() != nullptr);
  auto const known = keeper->texts_.find(key);
  return known != keeper->texts_.end() ? known->second
                                       : keeper->texts_.emplace(key, read()).first->second;
}

std::vector<std::string> names_in(fs::path const& folder, std::error_code& problem) {
  fs::path const full = innermost == nullptr ? fs::path() : comparable(folder);
  ListedFolders::Names made;
  problem.clear();
  ListedFolders::Names const* names =
      full.empty() ? nullptr : ListedFolders::listing_in_scope(full);
  if (names == nullptr) {
    made = ListedFolders::list(folder, problem);
    names = &made;
    ListedFolders* const keeper = full.empty() ? nullptr : ListedFolders::keeper_of(full);
    if (!problem && keeper != nullptr && is_searchable(full))
      names = &keeper->listings_.emplace(full, std::move(made)).first->second;
  }
  std::vector<std::string> result;
  for (auto const& [name, type] : *names) result.push_back(name);
  return result;
}

}  // namespace reshard
