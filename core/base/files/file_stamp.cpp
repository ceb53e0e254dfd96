#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "core/base/files/file.hpp"
#include "core/base/files/file_time.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/threads/activity.hpp"
#include "core/base/threads/retry.hpp"

namespace reshard {
namespace {

FileStamp stamp_from(struct stat const& status) {
  return {status.st_size, nanoseconds_since_1970(status.st_mtim),
          nanoseconds_since_1970(status.st_ctim), status.st_ino, status.st_dev};
}

/// Whether files of a device are on FUSE. Each device is asked once: a network file system asks its
/// server.
bool is_on_fuse(std::uint64_t device, std::function<int(struct statfs&)> const& ask) {
  static std::mutex mutex;
  static std::map<std::uint64_t, bool> known;
  std::lock_guard const lock(mutex);
  auto const found = known.find(device);
  if (found != known.end()) return found->second;
  struct statfs system {};
  if (ask(system) != 0) return false;
  return known[device] = system.f_type == FUSE_SUPER_MAGIC;
}

}  // namespace

FileStamp File::stamp() const { return sight_ == nullptr ? stamp_here() : seen_; }

FileStamp File::stamp_here() const {
  struct stat status {};
  if (retried([&] { return ::fstat(descriptor_, &status); }) != 0) fail_errno(path_, "stat", errno);
  FileStamp stamp = stamp_from(status);
  auto const ask = [&](struct statfs& system) { return ::fstatfs(descriptor_, &system); };
  if (is_on_fuse(stamp.device, ask)) stamp.inode = 0;
  return stamp;
}

FileStamp stamp_of(std::filesystem::path const& path) {
  RESHARD_EXPECT(current_sight() == nullptr);
  FileStep const step("stat", path);
  struct statx status {};
  auto const look = [&] {
    return ::statx(AT_FDCWD, path.c_str(), AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &status);
  };
  if (retried(look) != 0 || !S_ISREG(status.stx_mode))
    return File::open_for_reading(path, ErrorKind::io).stamp();
  auto const nanoseconds = [](statx_timestamp const& time) {
    return nanoseconds_since_1970({time.tv_sec, time.tv_nsec});
  };
  FileStamp stamp{static_cast<std::int64_t>(status.stx_size), nanoseconds(status.stx_mtime),
                  nanoseconds(status.stx_ctime), status.stx_ino,
                  ::makedev(status.stx_dev_major, status.stx_dev_minor)};
  auto const ask = [&](struct statfs& system) { return ::statfs(path.c_str(), &system); };
  if (is_on_fuse(stamp.device, ask)) stamp.inode = 0;
  return stamp;
}

}  // namespace reshard
