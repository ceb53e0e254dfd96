// Loaded in front of libc (LD_PRELOAD): gives calls to the system another answer, holds them, or
// ends the process at them.
//
//   RESHARD_CALLS   rules, separated by ';', each CALL:PATH:ACTION[:FIRST[:COUNT]]
//     CALL     clone (FICLONERANGE) | flock | rename | renameat2 | fsync | posix_fadvise | pwritev2
//     | write (pwrite, pwritev and write) PATH     calls for files with this in their path, or with
//     a '$' behind it at its end; for renames in the old name; empty: all ACTION   an errno
//     (ENOSYS, EACCES, …): the call fails with it
//              ok: the call does nothing and says that it succeeded
//              kill: the process is killed before the call
//              hold=FILE: makes FILE.reached and waits for FILE.go before the call
//     FIRST, COUNT   which of the matching calls, from 0; and how many of them, else all from there
//     on
//   RESHARD_FREE_BYTES   what statvfs says that every file system has left

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/support/intercepted.hpp"

namespace {

using namespace intercepted;

struct Rule {
  std::string call;
  std::string path;
  std::string action;
  std::uint64_t first = 0;
  std::uint64_t count = UINT64_MAX;
  std::atomic<std::uint64_t> seen = 0;
};

std::string field(std::istringstream& line) {
  std::string word;
  std::getline(line, word, ':');
  return word;
}

std::deque<Rule>& rules() {
  static std::deque<Rule> all;
  static bool const read = [] {
    char const* const text = std::getenv("RESHARD_CALLS");
    std::istringstream list(text == nullptr ? "" : text);
    for (std::string one; std::getline(list, one, ';');) {
      std::istringstream line(one);
      Rule& rule = all.emplace_back();
      rule.call = field(line);
      rule.path = field(line);
      rule.action = field(line);
      if (std::string const first = field(line); !first.empty()) rule.first = std::stoull(first);
      if (std::string const count = field(line); !count.empty()) rule.count = std::stoull(count);
    }
    return true;
  }();
  (void)read;
  return all;
}

void hold(std::string const& file) {
  ::close(::open((file + ".reached").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  for (int i = 0; i < 60'000 && ::access((file + ".go").c_str(), F_OK) != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool is_meant(Rule const& rule, std::string const& path) {
  if (!rule.path.ends_with('$')) return path.find(rule.path) != std::string::npos;
  return path.ends_with(rule.path.substr(0, rule.path.size() - 1));
}

/// What a write that says it succeeded returns.
ssize_t written(int given, std::size_t bytes) {
  return given == 0 ? static_cast<ssize_t>(bytes) : given;
}

/// The answer that a rule gives instead of the system; nothing when the call is to be made.
std::optional<int> answer(char const* call, std::string const& path) {
  for (Rule& rule : rules()) {
    if (rule.call != call || !is_meant(rule, path)) continue;
    std::uint64_t const number = rule.seen++;
    if (number < rule.first || number - rule.first >= rule.count) continue;
    if (rule.action == "ok") return 0;
    if (rule.action == "kill") ::kill(::getpid(), SIGKILL);
    if (rule.action.starts_with("hold=")) {
      hold(rule.action.substr(5));
      continue;
    }
    errno = error_named(rule.action);
    if (errno == 0) std::abort();  // a test must not believe that a fault was planted
    return -1;
  }
  return std::nullopt;
}

}  // namespace

extern "C" {

int statvfs(char const* path, struct statvfs* status) {
  int const result = next<decltype(statvfs)>("statvfs")(path, status);
  if (char const* const free = std::getenv("RESHARD_FREE_BYTES"); free != nullptr && result == 0)
    status->f_bavail = std::stoull(free) / status->f_frsize;
  return result;
}

int flock(int descriptor, int operation) {
  auto const given = answer("flock", path_of(descriptor));
  return given ? *given : next<decltype(flock)>("flock")(descriptor, operation);
}

int ioctl(int descriptor, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  auto const given = request == FICLONERANGE ? answer("clone", path_of(descriptor)) : std::nullopt;
  return given ? *given : next<decltype(ioctl)>("ioctl")(descriptor, request, argument);
}

int rename(char const* from, char const* to) {
  auto const given = answer("rename", from);
  return given ? *given : next<decltype(rename)>("rename")(from, to);
}

int renameat2(int from_folder, char const* from, int to_folder, char const* to, unsigned flags) {
  auto const given = answer("renameat2", from);
  return given ? *given
               : next<decltype(renameat2)>("renameat2")(from_folder, from, to_folder, to, flags);
}

int fsync(int descriptor) {
  auto const given = answer("fsync", path_of(descriptor));
  return given ? *given : next<decltype(fsync)>("fsync")(descriptor);
}

int posix_fadvise(int descriptor, off_t offset, off_t bytes, int advice) {
  auto const given = answer("posix_fadvise", path_of(descriptor));
  return given ? *given
               : next<decltype(posix_fadvise)>("posix_fadvise")(descriptor, offset, bytes, advice);
}

ssize_t pwritev2(int descriptor, iovec const* parts, int count, off_t offset, int flags) {
  auto const given = answer("pwritev2", path_of(descriptor));
  return given ? written(*given, bytes_of(parts, count))
               : next<decltype(pwritev2)>("pwritev2")(descriptor, parts, count, offset, flags);
}

ssize_t pwrite(int descriptor, void const* from, size_t count, off_t offset) {
  auto const given = answer("write", path_of(descriptor));
  return given ? written(*given, count)
               : next<decltype(pwrite)>("pwrite")(descriptor, from, count, offset);
}

ssize_t pwrite64(int descriptor, void const* from, size_t count, off64_t offset) {
  auto const given = answer("write", path_of(descriptor));
  return given ? written(*given, count)
               : next<decltype(pwrite64)>("pwrite64")(descriptor, from, count, offset);
}

ssize_t pwritev(int descriptor, iovec const* parts, int count, off_t offset) {
  auto const given = answer("write", path_of(descriptor));
  return given ? written(*given, bytes_of(parts, count))
               : next<decltype(pwritev)>("pwritev")(descriptor, parts, count, offset);
}

ssize_t write(int descriptor, void const* from, size_t count) {
  auto const given = answer("write", path_of(descriptor));
  return given ? written(*given, count) : next<decltype(write)>("write")(descriptor, from, count);
}

}  // extern "C"
