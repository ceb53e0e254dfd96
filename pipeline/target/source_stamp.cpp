#include "pipeline/target/source_stamp.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <vector>

#include <sys/stat.h>

#include "core/base/file.hpp"
#include "core/base/file_time.hpp"
#include "core/base/retry.hpp"
#include "core/base/xxh3.hpp"
#include "core/containers/dcp/directory.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

class Stamper {
 public:
  SourceStamp run(fs::path const& root) {
    struct stat status {};
    bool const there = look(root, status);
    if (!there && errno != ENOENT)
      fail_errno(root, "stat", errno);  // else a folder would pass for a file
    if (there && S_ISDIR(status.st_mode))
      walk(root);
    else
      look_at(root, root.parent_path());
    std::sort(lines_.begin(), lines_.end());
    std::string all;
    for (std::string const& line : lines_) all += line;
    stamp_.digest = xxh3_128(all);
    return stamp_;
  }

 private:
  static bool look(fs::path const& path, struct stat& status) {
    return retried([&] { return ::stat(path.c_str(), &status); }) == 0;
  }

  [[noreturn]] static void fail_listing(fs::path const& root, std::error_code const& error) {
    fail(error == std::errc::permission_denied ? ErrorKind::source : ErrorKind::io,
         "{}: cannot be listed: {}. Check the path and its permissions.", root.string(),
         error.message());
  }

  void walk(fs::path const& root) {
    std::error_code error;
    fs::recursive_directory_iterator it(root, error);
    if (error) fail_listing(root, error);
    look_at(root, root);
    for (; !error && it != fs::recursive_directory_iterator(); it.increment(error))
      look_at(it->path(), root);
    // Half a list is none: with its stamp an unchanged checkpoint would look like a changed one.
    if (error) fail_listing(root, error);
  }

  void look_at(fs::path const& path, fs::path const& root) {
    std::string const name = path.filename().string();
    struct stat status {};
    if (!look(path, status)) {
      if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)
        return;  // a link that leads nowhere, or a file that has just gone
      if (errno == EACCES)
        fail(ErrorKind::source, "{}: cannot be accessed: {}. Check its permissions.", path.string(),
             system_reason(errno));
      fail_errno(path, "stat", errno);
    }
    std::int64_t const changed = nanoseconds_since_1970(status.st_mtim);
    bool const is_file = S_ISREG(status.st_mode);
    if (is_file && name.starts_with('.') && name != dcp::metadata_name) return;
    if (is_file || S_ISDIR(status.st_mode)) stamp_.newest_ns = std::max(stamp_.newest_ns, changed);
    if (!is_file) return;
    ++stamp_.files;
    stamp_.bytes += static_cast<std::uint64_t>(status.st_size);
    lines_.push_back(fmt::format("{} {} {}\n",
                                 json_quoted(path.lexically_relative(root).generic_string()),
                                 status.st_size, changed));
  }

  SourceStamp stamp_;
  std::vector<std::string> lines_;
};

}  // namespace

SourceStamp source_stamp(fs::path const& path) { return Stamper().run(path); }

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
