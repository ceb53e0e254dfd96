#include "pipeline/journal/journal_folder.hpp"

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/file_time.hpp"
#include "core/base/files/tree.hpp"
#include "core/base/text/text.hpp"
#include "core/base/threads/activity.hpp"
#include "core/base/threads/retry.hpp"
#include "core/base/threads/workers.hpp"
#include "core/formats/manifest/file_records.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "stages/write/journal.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view job_file = "job";
constexpr std::string_view lost_file = "job.lost";
constexpr std::string_view complete_file = "complete";
constexpr std::uint64_t most_job_bytes = std::uint64_t{64} << 20;
constexpr std::uint64_t most_complete_bytes = std::uint64_t{256} << 20;

/// Of the files of the parts of a run, before the number.
std::string part_prefix(std::uint64_t run) { return fmt::format("{:04}.claim-", run); }

/// A folder keeps its inode under every name. The number of a device means something only until the
/// machine is started again.
std::string staging_line(fs::path const& staging) {
  struct stat status {};
  if (::lstat(staging.c_str(), &status) != 0) return "";
  return fmt::format("staging {} {} {}\n", status.st_ino, status.st_dev, this_boot_id());
}

/// "staging INODE DEVICE BOOT": the folder that is there now, as far as the numbers mean something
/// here.
bool is_line_of(std::string const& line, fs::path const& staging) {
  std::istringstream words(line);
  std::string word;
  std::string boot;
  std::uint64_t inode = 0;
  std::uint64_t device = 0;
  struct stat status {};
  if (!(words >> word >> inode >> device >> boot) || ::lstat(staging.c_str(), &status) != 0)
    return false;
  return inode == status.st_ino && (boot != this_boot_id() || device == status.st_dev);
}

std::int64_t nanoseconds(statx_timestamp const& time) {
  return nanoseconds_since_1970({time.tv_sec, time.tv_nsec});
}

/// One line for a file or folder, as the server of its file system has it now.
std::string line_of(fs::path const& path, fs::path const& root) {
  FileStep const step("stat", path);
  struct statx status {};
  auto const look = [&] {
    return ::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW | AT_STATX_FORCE_SYNC,
                   STATX_BASIC_STATS, &status);
  };
  if (retried(look) != 0) fail_errno(path, "stat", errno);
  if (S_ISLNK(status.stx_mode)) fail_errno(path, "stat", ELOOP);
  std::string const name = path.lexically_relative(root).generic_string();
  if (S_ISDIR(status.stx_mode)) return fmt::format("folder {} {}\n", status.stx_ino, name);
  return fmt::format("{} {} {} {} {}\n", status.stx_size, nanoseconds(status.stx_mtime),
                     nanoseconds(status.stx_ctime), status.stx_ino, name);
}

/// Contents of a folder, of which these are the lines, with the digest of its manifest where it has
/// one.
std::string contents_of(std::vector<std::string> lines, std::optional<std::uint64_t> manifest) {
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (std::string const& line : lines) text += line;
  return fmt::format("{}manifest {}\n", text, manifest ? hex64(*manifest) : "-");
}

/// The same for all that it holds now; "" when it cannot be looked at.
std::string contents_of(fs::path const& root) {
  std::string text;
  auto const error = capture([&] {
    std::error_code problem;
    std::vector<TreeEntry> const entries = tree_of(root, problem);
    if (problem) fail_errno(root, "list", problem.value());
    std::vector<fs::path> paths;
    for (TreeEntry const& entry : entries) paths.push_back(entry.path);
    std::optional<std::uint64_t> manifest;
    if (fs::is_regular_file(fs::symlink_status(root / manifest_name)))
      manifest = record_of(root / manifest_name, root).xxh3;
    text = contents_of(contents_lines(paths, root), manifest);
  });
  return error ? "" : text;
}

[[noreturn]] void fail_contents(fs::path const& staging) {
  fail(ErrorKind::io,
       "{}: cannot be listed and read again, or a file in it was replaced by a link. Find out what "
       "else writes there, then run again.",
       staging.string());
}

/// Of a journal's file `job`.
struct NotedJob {
  std::optional<JobIdentity> identity;
  std::string staging;  ///< a line of staging_line()
  std::string text;     ///< the job
};

/// Nothing for a text that is none, and where it cannot be read.
std::optional<NotedJob> noted_job(fs::path const& file) {
  std::string text;
  if (capture([&] { text = read_text_file(file, most_job_bytes); })) return std::nullopt;
  std::size_t const staging = text.find("\nstaging ");
  std::size_t const end = staging == text.npos ? staging : text.find('\n', staging + 1);
  if (end == text.npos) return std::nullopt;
  return NotedJob{parse_identity(std::string_view(text).substr(0, staging + 1)),
                  text.substr(staging + 1, end - staging), text.substr(end + 1)};
}

/// ": layout.tp = 2" for the lines of a job that were others before.
std::string changed_keys_of(std::string const& before, std::string const& now) {
  std::set<std::string> known;
  std::istringstream old_lines(before);
  for (std::string line; std::getline(old_lines, line);) known.insert(line);
  std::vector<std::string> changed;
  std::istringstream lines(now);
  for (std::string line; std::getline(lines, line);)
    if (!known.contains(line)) changed.push_back(line);
  return changed.empty() ? "" : ": " + listed(changed, 4);
}

}  // namespace

std::optional<std::string> JournalFolder::obstacle(fs::path const& staging,
                                                   JobIdentity const& identity) const {
  std::error_code ignored;
  for (fs::path const& folder : {staging, path_})
    if (!fs::is_directory(fs::symlink_status(folder, ignored)))
      return folder.filename().string() + " is not a folder";
  if (fs::exists(fs::symlink_status(path_ / lost_file, ignored)))
    return "a sync failed, so data may be lost";
  if (!fs::is_regular_file(fs::symlink_status(path_ / job_file, ignored)))
    return "its journal is incomplete";
  auto const before = noted_job(path_ / job_file);
  if (!before || !before->identity) return "its journal cannot be read";
  if (!is_line_of(before->staging, staging)) return "its journal belongs to another folder";
  std::string changed = difference(*before->identity, identity);
  if (changed.empty()) return std::nullopt;
  if (before->identity->job != identity.job)
    changed += changed_keys_of(before->text, identity.job_text);
  return changed;
}

bool JournalFolder::is_of(fs::path const& staging) const {
  auto const noted = noted_job(path_ / job_file);
  return noted && is_line_of(noted->staging, staging);
}

void JournalFolder::create(fs::path const& staging, JobIdentity const& identity,
                           std::string const& nightly_source) const {
  if (!nightly_source.empty()) write_text_file(path_ / journal_source_name, nightly_source);
  // Under another name first: half a line is none.
  write_text_file(path_ / "job.new",
                  identity_text(identity) + staging_line(staging) + identity.job_text);
  rename_path(path_ / "job.new", path_ / job_file);
  sync_directory(path_);
  sync_directory(path_.parent_path());
}

std::vector<std::string> contents_lines(std::span<fs::path const> paths, fs::path const& root) {
  std::vector<std::string> lines(paths.size());
  if (capture([&] {
        overlapped(lines.size(), [&](std::size_t i) { lines[i] = line_of(paths[i], root); });
      }))
    fail_contents(root);
  return lines;
}

void JournalFolder::mark_complete(std::vector<std::string> lines,
                                  std::optional<std::uint64_t> manifest) const {
  fs::path const made = path_ / fmt::format("{}.new", complete_file);
  write_text_file(made, contents_of(std::move(lines), manifest));
  fs::rename(made, path_ / complete_file);
  sync_directory(path_);
}

bool JournalFolder::is_complete(fs::path const& staging) const {
  std::error_code ignored;
  if (!fs::is_regular_file(fs::symlink_status(path_ / complete_file, ignored))) return false;
  std::string noted;
  if (capture([&] { noted = read_text_file(path_ / complete_file, most_complete_bytes); }))
    return false;
  return !noted.empty() && noted == contents_of(staging);
}

void JournalFolder::distrust() const {
  capture([&] { rename_path(path_ / job_file, path_ / lost_file); });
  capture([&] { sync_directory(path_); });
}

fs::path JournalFolder::rank_file(std::uint64_t run, int rank) const {
  return path_ / fmt::format("{:04}-{:05}", run, rank);
}
fs::path JournalFolder::base_file(std::uint64_t run) const {
  return path_ / fmt::format("{:04}.base", run);
}
fs::path JournalFolder::part_file(std::uint64_t run, std::size_t part) const {
  return path_ / fmt::format("{}{:05}", part_prefix(run), part);
}
std::optional<std::size_t> JournalFolder::part_of(std::string const& file_name, std::uint64_t run) {
  std::string const prefix = part_prefix(run);
  if (!file_name.starts_with(prefix)) return std::nullopt;
  std::size_t part = 0;
  char const* const end = file_name.data() + file_name.size();
  auto const [rest, problem] = std::from_chars(file_name.data() + prefix.size(), end, part);
  if (problem != std::errc() || rest != end) return std::nullopt;
  return part;
}

}  // namespace reshard
