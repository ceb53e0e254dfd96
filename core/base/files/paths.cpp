#include "core/base/files/paths.hpp"

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/files/tree.hpp"
#include "core/base/threads/workers.hpp"

namespace reshard {

namespace fs = std::filesystem;

fs::path normal_path(fs::path const& path) {
  fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

fs::path full_path(fs::path const& path) { return normal_path(fs::absolute(path)); }

namespace {

/// The resolved path of a path that can be opened: the system's name of the descriptor, by one call
/// instead of one for each component. Empty if there is none; errno has the reason if the path
/// cannot be opened.
fs::path system_name(fs::path const& path) {
  int const descriptor = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  if (descriptor < 0) return {};
  std::error_code problem;
  fs::path name = fs::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), problem);
  // The system appends " (deleted)" to the name of a removed file.
  struct stat opened {};
  bool const known = !problem && name.is_absolute() && ::fstat(descriptor, &opened) == 0 &&
                     opened.st_nlink > 0 && !name.native().ends_with(" (deleted)");
  ::close(descriptor);
  errno = 0;
  return known ? name : fs::path();
}

/// system_name() of a path whose last component need not exist.
fs::path quickly_resolved(fs::path const& path) {
  if (!path.has_filename() || path.lexically_normal() != path) return {};
  if (fs::path name = system_name(path); !name.empty()) return name;
  if (errno != ENOENT) return {};
  fs::path const folder = system_name(path.parent_path());
  return folder.empty() ? folder : folder / path.filename();
}

}  // namespace

fs::path resolved_path(fs::path const& path, std::error_code& problem) {
  fs::path const absolute = fs::absolute(path, problem);
  if (fs::path quick = problem ? fs::path() : quickly_resolved(absolute); !quick.empty())
    return quick;
  fs::path const resolved = fs::weakly_canonical(absolute, problem);
  return normal_path(problem ? absolute : resolved);
}

fs::path resolved_path(fs::path const& path) {
  std::error_code ignored;
  return resolved_path(path, ignored);
}

namespace {

/// Resolves the entries of one folder.
class ResolvedFolder {
 public:
  /// Many entries are worth a listing, which has the types, links included; so is a known listing.
  ResolvedFolder(fs::path const& resolved, fs::path const& folder, std::size_t entries)
      : resolved_(resolved.string()) {
    constexpr std::size_t worth_a_listing = 8;
    std::error_code problem;
    auto const known = known_listing(folder);
    if (!known && entries < worth_a_listing) return;
    for (TreeEntry const& entry : known ? *known : known_listing_of(folder, problem))
      types_.emplace(entry.path.filename().string(), entry.type);
  }

  fs::path of(fs::path const& path) const {
    if (path.filename().empty() || path.filename() == "." || path.filename() == "..")
      return resolved_path(path);
    auto const known = types_.find(path.filename().string());
    std::error_code problem;
    auto const type =
        known != types_.end() ? known->second : fs::symlink_status(path, problem).type();
    if (type == fs::file_type::regular || type == fs::file_type::directory)
      return fs::path(resolved_) / path.filename();
    return resolved_path(path);
  }

 private:
  // Text rather than fs::path, which takes some hundred bytes more: there may be a folder for each
  // file.
  std::string resolved_;
  std::map<std::string, fs::file_type> types_;
};

}  // namespace

std::vector<std::string> resolved_paths(FilePaths const& paths) {
  std::vector<std::string> full;
  full.reserve(paths.size());
  for (fs::path const& path : paths) full.push_back(fs::absolute(path).string());
  std::map<std::string, std::vector<std::size_t>> folders;
  for (std::size_t i = 0; i < full.size(); ++i)
    folders[fs::path(full[i]).parent_path().string()].push_back(i);
  std::map<std::string, std::size_t> inside;
  for (auto const& [folder, files] : folders) ++inside[fs::path(folder).parent_path().string()];
  std::map<std::string, ResolvedFolder> above;
  for (auto const& [folder, count] : inside)
    if (count > 1) above.try_emplace(folder, resolved_path(folder), folder, count);
  auto const resolved_folder = [&](fs::path const& folder, std::size_t files) {
    auto const beside = above.find(folder.parent_path().string());
    return ResolvedFolder(beside == above.end() ? resolved_path(folder) : beside->second.of(folder),
                          folder, files);
  };
  // Folders are not held together: there may be one for each file.
  constexpr std::size_t many = 8;
  std::vector<decltype(folders)::const_iterator> small;
  for (auto folder = folders.cbegin(); folder != folders.cend(); ++folder) {
    auto const& files = folder->second;
    if (files.size() < many) {
      small.push_back(folder);
      continue;
    }
    ResolvedFolder const resolved = resolved_folder(folder->first, files.size());
    overlapped(files.size(),
               [&](std::size_t i) { full[files[i]] = resolved.of(full[files[i]]).string(); });
  }
  overlapped(small.size(), [&](std::size_t i) {
    auto const& [folder, files] = *small[i];
    ResolvedFolder const resolved = resolved_folder(folder, files.size());
    for (std::size_t const file : files) full[file] = resolved.of(full[file]).string();
  });
  return full;
}

fs::path hidden_beside(fs::path const& path, std::string_view ending) {
  return path.parent_path() / fmt::format(".{}{}", path.filename().string(), ending);
}

std::optional<std::string> hidden_for(std::string_view file_name, std::string_view ending) {
  if (!file_name.starts_with('.') || !file_name.ends_with(ending) ||
      file_name.size() < ending.size() + 2)
    return std::nullopt;
  return std::string(file_name.substr(1, file_name.size() - ending.size() - 1));
}

bool holds(fs::path const& folder, fs::path const& path) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

}  // namespace reshard
