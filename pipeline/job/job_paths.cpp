#include "pipeline/job/job_paths.hpp"

#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "core/base/error.hpp"
#include "core/base/paths.hpp"
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

FolderNumbers folder_numbers(fs::path folder) {
  FolderNumbers numbers;
  for (bool first = true;; first = false) {
    struct stat status {};
    bool const is_folder = ::stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
    if (is_folder) numbers.all.emplace(status.st_dev, status.st_ino);
    if (is_folder && first) numbers.own.emplace(status.st_dev, status.st_ino);
    if (folder == folder.parent_path()) return numbers;
    folder = folder.parent_path();
  }
}

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
  std::error_code ignored;
  fs::path const target = really(spec.target.path);
  FolderNumbers const of_target = folder_numbers(target);
  FolderNumbers const of_root = folder_numbers(really(spec.source.path));
  if (of_root.own && of_target.all.contains(*of_root.own))
    fail(ErrorKind::usage,
         "[target] path: {} is the source {}, or is inside it, through another mount. Choose a "
         "target outside of the source.",
         target.string(), spec.source.path);
  std::set<fs::path> looked_at;
  for (fs::path const& file : source.files) {
    fs::path const real = really(file);
    fs::path const folder = real.parent_path();
    bool const in_folder = !fs::is_regular_file(spec.source.path, ignored);
    bool holds_it = holds(target, real);
    bool beside = in_folder && holds(folder, target);
    if (looked_at.insert(folder).second) {
      FolderNumbers const of_source = folder_numbers(folder);
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
