#include "pipeline/records/source_stamp.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "core/base/files/file.hpp"
#include "core/base/files/file_time.hpp"
#include "core/base/files/tree.hpp"
#include "core/base/hash/xxh3.hpp"
#include "core/base/threads/retry.hpp"
#include "core/base/threads/workers.hpp"
#include "core/containers/dcp/directory.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

using KnownStamps = std::map<fs::path, FileStamp>;

/// A file's or folder's share of a stamp; nothing of one that has just gone.
struct Looked {
  bool is_file = false;
  bool is_folder = false;
  std::uint64_t bytes = 0;
  std::int64_t changed_ns = 0;
};

bool look(fs::path const& path, struct stat& status) {
  return retried([&] { return ::stat(path.c_str(), &status); }) == 0;
}

[[noreturn]] void fail_listing(fs::path const& root, std::error_code const& error) {
  fail(error == std::errc::permission_denied ? ErrorKind::source : ErrorKind::io,
       "{}: cannot be listed: {}. Check the path and its permissions.", root.string(),
       error.message());
}

Looked looked(struct stat const& status) {
  return {S_ISREG(status.st_mode), S_ISDIR(status.st_mode),
          static_cast<std::uint64_t>(status.st_size), nanoseconds_since_1970(status.st_mtim)};
}

Looked look_at(fs::path const& path, KnownStamps const& known) {
  if (auto const found = known.find(path); found != known.end())
    return {true, false, static_cast<std::uint64_t>(found->second.bytes), found->second.mtime_ns};
  struct stat status {};
  if (!look(path, status)) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)
      return {};  // a link that leads nowhere, or a file that has just gone
    if (errno == EACCES)
      fail(ErrorKind::source, "{}: cannot be accessed: {}. Check its permissions.", path.string(),
           system_reason(errno));
    fail_errno(path, "stat", errno);
  }
  return looked(status);
}

/// A folder with all that lies in it, or what is no folder. `status`: of the root, all zeros where
/// it is not there.
std::vector<fs::path> paths_in(fs::path const& root, struct stat& status) {
  bool const there = look(root, status);
  if (!there && errno != ENOENT)
    fail_errno(root, "stat", errno);  // else a folder would pass for a file
  std::vector<fs::path> paths{root};
  if (!there || !S_ISDIR(status.st_mode)) return paths;
  std::error_code error;
  for (TreeEntry& entry : known_tree_of(root, error)) paths.push_back(std::move(entry.path));
  // Half a list is none: with its stamp an unchanged checkpoint would look like a changed one.
  if (error) fail_listing(root, error);
  return paths;
}

}  // namespace

SourceStamp source_stamp(fs::path const& path, KnownStamps const& known) {
  struct stat of_root {};
  std::vector<fs::path> const paths = paths_in(path, of_root);
  std::vector<Looked> found(paths.size());
  found.front() = known.contains(path) ? look_at(path, known) : looked(of_root);
  overlapped(paths.size() - 1, [&](std::size_t i) { found[i + 1] = look_at(paths[i + 1], known); });
  fs::path const root = found.front().is_folder ? path : path.parent_path();
  SourceStamp stamp;
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    std::string const name = paths[i].filename().string();
    auto const& [is_file, is_folder, bytes, changed_ns] = found[i];
    if (is_file && name.starts_with('.') && name != dcp::metadata_name) continue;
    if (is_file || is_folder) stamp.newest_ns = std::max(stamp.newest_ns, changed_ns);
    if (!is_file) continue;
    ++stamp.files;
    stamp.bytes += bytes;
    lines.push_back(fmt::format("{} {} {}\n",
                                json_quoted(paths[i].lexically_relative(root).generic_string()),
                                bytes, changed_ns));
  }
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (std::string const& line : lines) all += line;
  stamp.digest = xxh3_128(all);
  return stamp;
}

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds_since_1970(now);
}

Json stamp_json(SourceStamp const& stamp) {
  Json json;
  return json.set("files", stamp.files)
      .set("bytes", stamp.bytes)
      .set("newest_ns", stamp.newest_ns)
      .set("xxh3", stamp.digest);
}

std::optional<SourceStamp> parse_stamp(Json const& json) {
  auto const number = [&](std::string_view key) -> std::int64_t const* {
    Json const* const member = json.find(key);
    return member == nullptr ? nullptr : member->integer();
  };
  Json const* const digest = json.find("xxh3");
  if (number("files") == nullptr || number("bytes") == nullptr || number("newest_ns") == nullptr)
    return std::nullopt;
  if (digest == nullptr || digest->text() == nullptr) return std::nullopt;
  return SourceStamp{static_cast<std::uint64_t>(*number("files")),
                     static_cast<std::uint64_t>(*number("bytes")), *number("newest_ns"),
                     *digest->text()};
}

}  // namespace reshard
