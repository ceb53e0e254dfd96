// Loaded in front of libc (LD_PRELOAD): counts the calls that a network file system sends to its
// metadata server, file by file, and makes each of them slow, as a server far away would. What
// works on an open descriptor alone (fstat, transfers, close) is counted where it is named below,
// and not slowed: a network file system answers it from what opening the file has told it.
//
// RESHARD_METADATA_FOLDERS: "source=/a/b:target=/c", classes of paths, by folder, absolute. Calls
// elsewhere are neither counted nor slowed.
//
// RESHARD_METADATA_DELAY_US: microseconds before each such call; none when it is not set.
//
// RESHARD_METADATA_LOG: a folder, which gets a file for each process: "waited MICROSECONDS", in
// which at least one call was held up, then lines "CLASS CALL COUNT PATH". CALL is create, open,
// open-folder, stat, statfs, fstat, mkdir, name (rename, link), remove, truncate (ftruncate,
// fallocate), fsync or times.

#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "tests/support/intercepted.hpp"

namespace {

using namespace intercepted;

/// Name and folder.
std::vector<std::pair<std::string, std::string>> classes_in(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> classes;
  for (std::string const& one : split(text, ':')) {
    std::size_t const equals = one.find('=');
    if (equals == std::string::npos) std::abort();  // a test must not believe that it has counted
    classes.emplace_back(one.substr(0, equals), one.substr(equals + 1));
  }
  return classes;
}

class Counts {
 public:
  Counts() {
    std::atexit([] { all().print(); });
  }

  /// Never destroyed: files are used until the very end.
  static Counts& all() {
    static Counts* const one = new Counts;
    return *one;
  }

  /// Counts a call where it is of a class; whether it is.
  bool count(char const* call, std::string const& path) {
    for (auto const& [name, folder] : classes_) {
      if (!is_in(path, folder)) continue;
      std::lock_guard const lock(mutex_);
      ++counts_[{name, call, path}];
      return true;
    }
    return false;
  }

  /// Holds a call up. The time in which at least one call of the process is held is summed up.
  void wait() {
    if (delay_.count() == 0) return;
    {
      std::lock_guard const lock(mutex_);
      if (waiting_++ == 0) began_ = Clock::now();
    }
    std::this_thread::sleep_for(delay_);
    std::lock_guard const lock(mutex_);
    if (--waiting_ == 0) waited_ += Clock::now() - began_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// Without the functions below.
  void print() {
    if (log_.empty()) return;
    std::string text =
        "waited " + std::to_string(std::chrono::round<std::chrono::microseconds>(waited_).count()) +
        "\n";
    for (auto const& [key, count] : counts_) {
      auto const& [name, call, path] = key;
      text += name + " " + call + " " + std::to_string(count) + " " + path + "\n";
    }
    std::string const file = log_ + "/" + std::to_string(::getpid());
    long const descriptor = ::syscall(SYS_openat, AT_FDCWD, file.c_str(),
                                      O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0 ||
        ::syscall(SYS_write, descriptor, text.data(), text.size()) != std::ssize(text))
      std::abort();
  }

  std::vector<std::pair<std::string, std::string>> classes_ =
      classes_in(setting("RESHARD_METADATA_FOLDERS"));
  std::chrono::microseconds delay_{
      std::strtoll(setting("RESHARD_METADATA_DELAY_US").c_str(), nullptr, 10)};
  std::string log_ = setting("RESHARD_METADATA_LOG");
  std::mutex mutex_;  ///< of what follows
  int waiting_ = 0;
  Clock::time_point began_;
  Clock::duration waited_{};
  std::map<std::tuple<std::string, std::string, std::string>, std::uint64_t> counts_;
};

/// A call to the server.
template <class Call>
auto asked(char const* name, std::string const& path, Call const& call) {
  if (Counts::all().count(name, path)) Counts::all().wait();
  return call();
}

char const* opening(int flags) {
  if ((flags & O_CREAT) != 0) return "create";
  return (flags & O_DIRECTORY) != 0 ? "open-folder" : "open";
}

}  // namespace

extern "C" {

int open(char const* path, int flags, ...) {
  RESHARD_REAL(open);
  va_list more;
  va_start(more, flags);
  mode_t const mode = mode_of(flags, more);
  va_end(more);
  return asked(opening(flags), path_of(path), [&] { return real(path, flags, mode); });
}

int openat(int folder, char const* path, int flags, ...) {
  RESHARD_REAL(openat);
  va_list more;
  va_start(more, flags);
  mode_t const mode = mode_of(flags, more);
  va_end(more);
  return asked(opening(flags), path_of(path, folder),
               [&] { return real(folder, path, flags, mode); });
}

int creat(char const* path, mode_t mode) {
  RESHARD_REAL(creat);
  return asked("create", path_of(path), [&] { return real(path, mode); });
}

FILE* fopen(char const* path, char const* mode) {
  RESHARD_REAL(fopen);
  char const* const call = std::string_view(mode).starts_with('r') ? "open" : "create";
  return asked(call, path_of(path), [&] { return real(path, mode); });
}

DIR* opendir(char const* path) {
  RESHARD_REAL(opendir);
  return asked("open-folder", path_of(path), [&] { return real(path); });
}

int stat(char const* path, struct stat* status) noexcept {
  RESHARD_REAL(stat);
  return asked("stat", path_of(path), [&] { return real(path, status); });
}

int lstat(char const* path, struct stat* status) noexcept {
  RESHARD_REAL(lstat);
  return asked("stat", path_of(path), [&] { return real(path, status); });
}

int fstatat(int folder, char const* path, struct stat* status, int flags) noexcept {
  RESHARD_REAL(fstatat);
  return asked("stat", path_of(path, folder), [&] { return real(folder, path, status, flags); });
}

int statx(int folder, char const* path, int flags, unsigned mask, struct statx* status) noexcept {
  RESHARD_REAL(statx);
  bool const by_descriptor = path == nullptr || *path == '\0';
  std::string const place = by_descriptor ? path_of(folder) : path_of(path, folder);
  bool const from_server = !by_descriptor || (flags & AT_STATX_FORCE_SYNC) != 0;
  auto const call = [&] { return real(folder, path, flags, mask, status); };
  if (from_server) return asked("stat", place, call);
  Counts::all().count("fstat", place);
  return call();
}

int fstat(int descriptor, struct stat* status) noexcept {
  RESHARD_REAL(fstat);
  Counts::all().count("fstat", path_of(descriptor));
  return real(descriptor, status);
}

int statfs(char const* path, struct statfs* status) noexcept {
  RESHARD_REAL(statfs);
  return asked("statfs", path_of(path), [&] { return real(path, status); });
}

int fstatfs(int descriptor, struct statfs* status) noexcept {
  RESHARD_REAL(fstatfs);
  return asked("statfs", path_of(descriptor), [&] { return real(descriptor, status); });
}

int access(char const* path, int mode) noexcept {
  RESHARD_REAL(access);
  return asked("stat", path_of(path), [&] { return real(path, mode); });
}

int mkdir(char const* path, mode_t mode) noexcept {
  RESHARD_REAL(mkdir);
  return asked("mkdir", path_of(path), [&] { return real(path, mode); });
}

int rename(char const* from, char const* to) noexcept {
  RESHARD_REAL(rename);
  return asked("name", path_of(from), [&] { return real(from, to); });
}

int renameat2(int from_folder, char const* from, int to_folder, char const* to,
              unsigned flags) noexcept {
  RESHARD_REAL(renameat2);
  return asked("name", path_of(from, from_folder),
               [&] { return real(from_folder, from, to_folder, to, flags); });
}

int link(char const* from, char const* to) noexcept {
  RESHARD_REAL(link);
  return asked("name", path_of(to), [&] { return real(from, to); });
}

int unlink(char const* path) noexcept {
  RESHARD_REAL(unlink);
  return asked("remove", path_of(path), [&] { return real(path); });
}

int unlinkat(int folder, char const* path, int flags) noexcept {
  RESHARD_REAL(unlinkat);
  return asked("remove", path_of(path, folder), [&] { return real(folder, path, flags); });
}

int rmdir(char const* path) noexcept {
  RESHARD_REAL(rmdir);
  return asked("remove", path_of(path), [&] { return real(path); });
}

int remove(char const* path) noexcept {
  RESHARD_REAL(remove);
  return asked("remove", path_of(path), [&] { return real(path); });
}

int ftruncate(int descriptor, off_t bytes) noexcept {
  RESHARD_REAL(ftruncate);
  return asked("truncate", path_of(descriptor), [&] { return real(descriptor, bytes); });
}

int fallocate(int descriptor, int mode, off_t offset, off_t bytes) {
  RESHARD_REAL(fallocate);
  return asked("truncate", path_of(descriptor),
               [&] { return real(descriptor, mode, offset, bytes); });
}

int fsync(int descriptor) {
  RESHARD_REAL(fsync);
  return asked("fsync", path_of(descriptor), [&] { return real(descriptor); });
}

int fdatasync(int descriptor) {
  RESHARD_REAL(fdatasync);
  return asked("fsync", path_of(descriptor), [&] { return real(descriptor); });
}

int syncfs(int descriptor) noexcept {
  RESHARD_REAL(syncfs);
  return asked("fsync", path_of(descriptor), [&] { return real(descriptor); });
}

int utimensat(int folder, char const* path, timespec const times[2], int flags) noexcept {
  RESHARD_REAL(utimensat);
  return asked("times", path_of(path, folder), [&] { return real(folder, path, times, flags); });
}

}  // extern "C"
