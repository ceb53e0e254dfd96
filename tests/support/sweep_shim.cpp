// Loaded in front of libc (LD_PRELOAD): numbers the calls of one rank that concern files below some
// folders, and breaks one of them. tests/sweep/sweep.py starts the program with it once for every
// number. Calls that libc makes for itself (as fopen does) are not seen.
//
//   RESHARD_SWEEP_FOLDERS   the folders, absolute, with ':' between them
//   RESHARD_SWEEP_RANK      which rank; without MPI's launcher there is only rank 0
//   RESHARD_SWEEP_FAULT     none | kill (the process group) | hold | short (a transfer ends
//   halfway) | command | the name of an error, such as EIO RESHARD_SWEEP_CALL      which call, from
//   1 on, and RESHARD_SWEEP_LAST      up to which one; the same when it is not set
//   RESHARD_SWEEP_FUNCTIONS with LAST: only these functions, with ',' between them
//   RESHARD_SWEEP_SECONDS   how long `hold` lasts
//   RESHARD_SWEEP_COMMAND   what `command` has the shell do, just before the call
//   RESHARD_SWEEP_HIDE      a name that listings of this rank do not show, as one served from an
//   old cache RESHARD_SWEEP_ALWAYS    "renameat2=EINVAL": this function fails each time, as on a
//   file system that does not have it RESHARD_SWEEP_LOG       gets a line for each call: its
//   number, the function, the path; a broken one has "!" in front

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/intercepted.hpp"

namespace {

using namespace intercepted;

struct Plan {
  std::vector<std::string> folders = split(setting("RESHARD_SWEEP_FOLDERS"), ':');
  std::vector<std::string> functions = split(setting("RESHARD_SWEEP_FUNCTIONS"), ',');
  std::vector<std::string> always = split(setting("RESHARD_SWEEP_ALWAYS"), '=');
  std::string fault = setting("RESHARD_SWEEP_FAULT");
  std::uint64_t first = number_in(setting("RESHARD_SWEEP_CALL"));
  std::uint64_t last = std::max(first, number_in(setting("RESHARD_SWEEP_LAST")));
  std::chrono::duration<double> hold{
      std::strtod(setting("RESHARD_SWEEP_SECONDS").c_str(), nullptr)};
  std::string command = setting("RESHARD_SWEEP_COMMAND");
  std::string hidden = setting("RESHARD_SWEEP_HIDE");
  std::string log = setting("RESHARD_SWEEP_LOG");
  bool mine =
      number_in(setting("RESHARD_SWEEP_RANK")) == number_in(setting("OMPI_COMM_WORLD_RANK"));
  std::atomic<std::uint64_t> calls = 0;
};

Plan& plan() {
  static Plan one;
  return one;
}

bool concerns(std::string const& path) {
  auto const& folders = plan().folders;
  return std::any_of(folders.begin(), folders.end(),
                     [&](std::string const& folder) { return is_in(path, folder); });
}

/// Without the functions below: what is noted is not counted.
void note(std::uint64_t number, bool broken, char const* function, std::string const& path) {
  static long const file = plan().log.empty()
                               ? -1
                               : ::syscall(SYS_openat, AT_FDCWD, plan().log.c_str(),
                                           O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  std::string const line =
      (broken ? "!" : "") + std::to_string(number) + " " + function + " " + path + "\n";
  if (file >= 0 && ::syscall(SYS_write, file, line.data(), line.size()) < 0)
    std::abort();  // a test must not count wrongly
}

/// Without this shim in front of the shell.
void carry_out_command() {
  pid_t const child = ::fork();
  if (child == 0) {
    ::unsetenv("LD_PRELOAD");
    ::execl("/bin/sh", "sh", "-c", plan().command.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0)
    std::abort();  // the test would prove nothing
}

struct Fate {
  int error = 0;
  bool cut = false;
};

/// What becomes of a call. A kill does not return.
Fate fate_of(char const* function, std::string const& path) {
  Plan& sweep = plan();
  if (!sweep.mine || !concerns(path)) return {};
  if (sweep.always.size() == 2 && sweep.always[0] == function)
    return {error_named(sweep.always[1]), false};
  std::uint64_t const number = ++sweep.calls;
  bool const meant =
      sweep.functions.empty() ||
      std::find(sweep.functions.begin(), sweep.functions.end(), function) != sweep.functions.end();
  bool const due = sweep.first <= number && number <= sweep.last && meant;
  note(number, due, function, path);
  if (!due) return {};
  if (sweep.fault == "kill") ::kill(0, SIGKILL);
  if (sweep.fault == "hold") std::this_thread::sleep_for(sweep.hold);
  if (sweep.fault == "command") carry_out_command();
  return {error_named(sweep.fault), sweep.fault == "short"};
}

/// The call itself, unless it is to fail.
template <class Call>
auto carried_out(char const* function, std::string const& path, Call const& call)
    -> decltype(call()) {
  int const error = fate_of(function, path).error;
  if (error == 0) return call();
  errno = error;
  if constexpr (std::is_pointer_v<decltype(call())>)
    return nullptr;
  else
    return -1;
}

/// A transfer of bytes, or of half of them.
template <class Call>
ssize_t transferred(char const* function, int descriptor, std::size_t bytes, Call const& call) {
  Fate const fate = fate_of(function, path_of(descriptor));
  errno = fate.error;
  return fate.error != 0 ? -1 : call(fate.cut ? (bytes + 1) / 2 : bytes);
}

std::vector<iovec> first_bytes(iovec const* parts, int count, std::size_t bytes) {
  std::vector<iovec> kept;
  for (int i = 0; i < count && bytes > 0; ++i) {
    kept.push_back({parts[i].iov_base, std::min(bytes, parts[i].iov_len)});
    bytes -= kept.back().iov_len;
  }
  return kept;
}

}  // namespace

extern "C" {

// --- opening and closing
// --------------------------------------------------------------------------------------------------

int open(char const* path, int flags, ...) {
  RESHARD_REAL(open);
  va_list more;
  va_start(more, flags);
  mode_t const mode = mode_of(flags, more);
  va_end(more);
  return carried_out((flags & O_CREAT) != 0 ? "open-new" : "open", path_of(path),
                     [&] { return real(path, flags, mode); });
}

int openat(int folder, char const* path, int flags, ...) {
  RESHARD_REAL(openat);
  va_list more;
  va_start(more, flags);
  mode_t const mode = mode_of(flags, more);
  va_end(more);
  return carried_out("openat", path_of(path, folder),
                     [&] { return real(folder, path, flags, mode); });
}

int creat(char const* path, mode_t mode) {
  RESHARD_REAL(creat);
  return carried_out("creat", path_of(path), [&] { return real(path, mode); });
}

/// Whatever it answers, the descriptor is gone, as under Linux. Of a file that could be written it
/// may say what was lost.
int close(int descriptor) {
  RESHARD_REAL(close);
  int const flags = ::fcntl(descriptor, F_GETFL);
  bool const writable = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
  int const error = fate_of(writable ? "close-written" : "close", path_of(descriptor)).error;
  int const result = real(descriptor);
  if (error == 0) return result;
  errno = error;
  return -1;
}

// --- transfers
// ------------------------------------------------------------------------------------------------------------

ssize_t read(int descriptor, void* into, std::size_t count) {
  RESHARD_REAL(read);
  return transferred("read", descriptor, count,
                     [&](std::size_t bytes) { return real(descriptor, into, bytes); });
}

ssize_t pread(int descriptor, void* into, std::size_t count, off_t offset) {
  RESHARD_REAL(pread);
  return transferred("pread", descriptor, count,
                     [&](std::size_t bytes) { return real(descriptor, into, bytes, offset); });
}

ssize_t preadv(int descriptor, iovec const* parts, int count, off_t offset) {
  RESHARD_REAL(preadv);
  return transferred("preadv", descriptor, bytes_of(parts, count), [&](std::size_t bytes) {
    std::vector<iovec> const kept = first_bytes(parts, count, bytes);
    return real(descriptor, kept.data(), static_cast<int>(kept.size()), offset);
  });
}

ssize_t write(int descriptor, void const* from, std::size_t count) {
  RESHARD_REAL(write);
  return transferred("write", descriptor, count,
                     [&](std::size_t bytes) { return real(descriptor, from, bytes); });
}

ssize_t pwrite(int descriptor, void const* from, std::size_t count, off_t offset) {
  RESHARD_REAL(pwrite);
  return transferred("pwrite", descriptor, count,
                     [&](std::size_t bytes) { return real(descriptor, from, bytes, offset); });
}

ssize_t pwritev2(int descriptor, iovec const* parts, int count, off_t offset, int flags) {
  RESHARD_REAL(pwritev2);
  return transferred("pwritev2", descriptor, bytes_of(parts, count), [&](std::size_t bytes) {
    std::vector<iovec> const kept = first_bytes(parts, count, bytes);
    return real(descriptor, kept.data(), static_cast<int>(kept.size()), offset, flags);
  });
}

// --- descriptors
// ----------------------------------------------------------------------------------------------------------

int ftruncate(int descriptor, off_t bytes) noexcept {
  RESHARD_REAL(ftruncate);
  return carried_out("ftruncate", path_of(descriptor), [&] { return real(descriptor, bytes); });
}

int fsync(int descriptor) {
  RESHARD_REAL(fsync);
  return carried_out("fsync", path_of(descriptor), [&] { return real(descriptor); });
}

int fdatasync(int descriptor) {
  RESHARD_REAL(fdatasync);
  return carried_out("fdatasync", path_of(descriptor), [&] { return real(descriptor); });
}

int sync_file_range(int descriptor, off64_t offset, off64_t bytes, unsigned flags) {
  RESHARD_REAL(sync_file_range);
  return carried_out("sync_file_range", path_of(descriptor),
                     [&] { return real(descriptor, offset, bytes, flags); });
}

/// It returns its error.
int posix_fadvise(int descriptor, off_t offset, off_t bytes, int advice) noexcept {
  RESHARD_REAL(posix_fadvise);
  int const error = fate_of("posix_fadvise", path_of(descriptor)).error;
  return error != 0 ? error : real(descriptor, offset, bytes, advice);
}

int flock(int descriptor, int operation) noexcept {
  RESHARD_REAL(flock);
  return carried_out("flock", path_of(descriptor), [&] { return real(descriptor, operation); });
}

int fstat(int descriptor, struct stat* status) noexcept {
  RESHARD_REAL(fstat);
  return carried_out("fstat", path_of(descriptor), [&] { return real(descriptor, status); });
}

// --- names
// ----------------------------------------------------------------------------------------------------------------

int stat(char const* path, struct stat* status) noexcept {
  RESHARD_REAL(stat);
  return carried_out("stat", path_of(path), [&] { return real(path, status); });
}

int lstat(char const* path, struct stat* status) noexcept {
  RESHARD_REAL(lstat);
  return carried_out("lstat", path_of(path), [&] { return real(path, status); });
}

/// By path only: of descriptors nothing is asked that could fail.
int statx(int folder, char const* path, int flags, unsigned mask, struct statx* status) noexcept {
  RESHARD_REAL(statx);
  auto const call = [&] { return real(folder, path, flags, mask, status); };
  if (path == nullptr || *path == '\0') return call();
  return carried_out("statx", path_of(path, folder), call);
}

int rename(char const* from, char const* to) noexcept {
  RESHARD_REAL(rename);
  return carried_out("rename", path_of(from), [&] { return real(from, to); });
}

int renameat(int from_folder, char const* from, int to_folder, char const* to) noexcept {
  RESHARD_REAL(renameat);
  return carried_out("renameat", path_of(from, from_folder),
                     [&] { return real(from_folder, from, to_folder, to); });
}

int renameat2(int from_folder, char const* from, int to_folder, char const* to,
              unsigned flags) noexcept {
  RESHARD_REAL(renameat2);
  return carried_out("renameat2", path_of(from, from_folder),
                     [&] { return real(from_folder, from, to_folder, to, flags); });
}

int mkdir(char const* path, mode_t mode) noexcept {
  RESHARD_REAL(mkdir);
  return carried_out("mkdir", path_of(path), [&] { return real(path, mode); });
}

int mkdirat(int folder, char const* path, mode_t mode) noexcept {
  RESHARD_REAL(mkdirat);
  return carried_out("mkdirat", path_of(path, folder), [&] { return real(folder, path, mode); });
}

int unlink(char const* path) noexcept {
  RESHARD_REAL(unlink);
  return carried_out("unlink", path_of(path), [&] { return real(path); });
}

int unlinkat(int folder, char const* path, int flags) noexcept {
  RESHARD_REAL(unlinkat);
  return carried_out("unlinkat", path_of(path, folder), [&] { return real(folder, path, flags); });
}

int rmdir(char const* path) noexcept {
  RESHARD_REAL(rmdir);
  return carried_out("rmdir", path_of(path), [&] { return real(path); });
}

int remove(char const* path) noexcept {
  RESHARD_REAL(remove);
  return carried_out("remove", path_of(path), [&] { return real(path); });
}

// --- listings
// -------------------------------------------------------------------------------------------------------------

DIR* opendir(char const* path) {
  RESHARD_REAL(opendir);
  return carried_out("opendir", path_of(path), [&] { return real(path); });
}

dirent* readdir(DIR* folder) {
  RESHARD_REAL(readdir);
  return carried_out("readdir", path_of(::dirfd(folder)), [&] {
    dirent* entry = real(folder);
    while (entry != nullptr && plan().mine && entry->d_name == plan().hidden) entry = real(folder);
    return entry;
  });
}

}  // extern "C"
