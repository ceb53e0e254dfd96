#include "pipeline/job/job_paths.hpp"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "core/base/error.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/threads/workers.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {

namespace {

namespace fs = std::filesystem;

/// Device and inode of a folder, if it is there, and of all above it: the same for a folder by
/// whatever path, and mount, it is reached.
struct FolderNumbers {
  using Number = std::pair<dev_t, ino_t>;
  std::optional<Number> own;
  std::set<Number> all;
};

/// Asks for each of many folders, and those above them, once. Folders are texts in it: a path takes
/// some hundred bytes more.
class NumbersOfFolders {
 public:
  void add(fs::path folder) {
    while (numbers_.emplace(folder.string(), std::nullopt).second && folder != folder.parent_path())
      folder = folder.parent_path();
  }

  /// To be called when all were added.
  void ask() {
    std::vector<std::pair<std::string const, Number>*> each;
    for (auto& one : numbers_) each.push_back(&one);
    overlapped(each.size(), [&](std::size_t i) {
      struct stat status {};
      if (::stat(each[i]->first.c_str(), &status) == 0 && S_ISDIR(status.st_mode))
        each[i]->second.emplace(status.st_dev, status.st_ino);
    });
  }

  FolderNumbers of(fs::path folder) const {
    FolderNumbers numbers{numbers_.at(folder.string()), {}};
    for (;; folder = folder.parent_path()) {
      if (auto const& number = numbers_.at(folder.string())) numbers.all.insert(*number);
      if (folder == folder.parent_path()) return numbers;
    }
  }

 private:
  using Number = std::optional<FolderNumbers::Number>;
  std::map<std::string, Number> numbers_;
};

/// The path without links, as far as it is there.
fs::path really(fs::path const& path) {
  std::error_code error;
  fs::path found = resolved_path(path, error);
  if (error == std::errc::too_many_symbolic_link_levels || error == std::errc::filename_too_long)
    fail(ErrorKind::target, "{}: cannot be followed: {}. Choose another path.", path.string(),
         error.message());
  if (error)
    fail(ErrorKind::io, "{}: cannot be accessed: {}. Check the file system and the permissions.",
         path.string(), error.message());
  return found;
}

}  // namespace

void check_outside_job(fs::path const& file, std::string_view option, JobSpec const& spec,
                       std::span<fs::path const> source_files) {
  if (file.empty())
    fail(ErrorKind::usage, "{}: the path is empty. Choose another path for {}.", option, option);
  fs::path const place = really(file);
  std::vector<fs::path> taken = places_of(spec.target.path);
  taken.emplace_back(spec.source.path);
  taken.insert(taken.end(), source_files.begin(), source_files.end());
  for (fs::path const& path : taken)
    if (holds(really(path), place))
      fail(ErrorKind::usage,
           "{} {}: {} belongs to this job's source or target. Choose another path for {}.", option,
           place.string(), path.string(), option);
}

void check_source_apart(JobSpec const& spec, Checkpoint const& source) {
  fs::path const target = really(spec.target.path);
  fs::path const root = really(spec.source.path);
  std::vector<std::string> const resolved = resolved_paths(source.files);
  NumbersOfFolders numbers;
  for (fs::path const& path : {target, root}) numbers.add(path);
  for (fs::path const real : resolved) numbers.add(real.parent_path());
  numbers.ask();
  FolderNumbers const of_target = numbers.of(target);
  FolderNumbers const of_root = numbers.of(root);
  if (of_root.own && of_target.all.contains(*of_root.own))
    fail(ErrorKind::usage,
         "[target] path: {} is the source {}, or is inside it, through another mount. Choose a "
         "target outside of the source.",
         target.string(), spec.source.path);
  std::set<std::string> looked_at;
  for (std::size_t f = 0; f < resolved.size(); ++f) {
    // A file of new rows may lie beside the target.
    bool const in_folder =
        of_root.own.has_value() && !(source.others.new_rows && f + 1 == resolved.size());
    fs::path const& file = source.files[f];
    fs::path const real = resolved[f];
    fs::path const folder = real.parent_path();
    bool holds_it = holds(target, real);
    bool beside = in_folder && holds(folder, target);
    if (looked_at.insert(folder.string()).second) {
      FolderNumbers const of_source = numbers.of(folder);
      holds_it = holds_it || (of_target.own && of_source.all.contains(*of_target.own));
      beside = beside || (in_folder && of_source.own && of_target.all.contains(*of_source.own));
    }
    if (holds_it || beside)
      fail(
          ErrorKind::usage,
          "[target] path: {} {} the source's {} (really {}). Choose a target outside of the source.",
          target.string(), holds_it ? "holds" : "lies in the folder of", file.string(),
          real.string());
  }
}

}  // namespace reshard
