// Loaded in front of libc (LD_PRELOAD): makes every write below a folder slow, as a busy file
// system would, so that a small job lasts long enough to be interrupted. How slow is asked anew for
// each write, so that a test can hold a job and let it go.
//
//   RESHARD_DELAY_PATH   writes to files with this in their path
//   RESHARD_DELAY_FILE   a file that holds the milliseconds before each such write; none when it is
//   missing. Behind them there may be MiB: so many of them the process writes in a second at most
//   RESHARD_DELAY_LOG    a file that gets a line with the number of bytes after each such write
//
// A "%r" in the name of the first file is the number of the rank (OMPI_COMM_WORLD_RANK).

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

std::string setting(char const* name) {
  char const* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string path_of(int descriptor) {
  char path[4096];
  ssize_t const length =
      ::readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), path, sizeof path);
  return length < 0 ? "" : std::string(path, static_cast<std::size_t>(length));
}

bool is_meant(int descriptor) {
  static std::string const wanted = setting("RESHARD_DELAY_PATH");
  return !wanted.empty() && path_of(descriptor).find(wanted) != std::string::npos;
}

std::string of_rank(std::string name) {
  if (std::size_t const at = name.find("%r"); at != std::string::npos)
    name.replace(at, 2, setting("OMPI_COMM_WORLD_RANK"));
  return name;
}

/// When the next bytes may be written if those before take their time.
std::chrono::steady_clock::time_point turn_of(size_t bytes, double mebibytes_per_second) {
  using Clock = std::chrono::steady_clock;
  static std::mutex mutex;
  static Clock::time_point free_at;
  std::chrono::duration<double> const takes(static_cast<double>(bytes) /
                                            (mebibytes_per_second * (1U << 20U)));
  std::lock_guard const lock(mutex);
  free_at = std::max(free_at, Clock::now()) + std::chrono::duration_cast<Clock::duration>(takes);
  return free_at;
}

void delay(size_t bytes) {
  static std::string const name = of_rank(setting("RESHARD_DELAY_FILE"));
  int milliseconds = 0;
  double mebibytes_per_second = 0;
  std::ifstream file(name);
  file >> milliseconds >> mebibytes_per_second;
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  if (mebibytes_per_second > 0) std::this_thread::sleep_until(turn_of(bytes, mebibytes_per_second));
}

void note(ssize_t bytes) {
  static std::string const path = setting("RESHARD_DELAY_LOG");
  static int const file =
      path.empty() ? -1 : ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  std::string const line = std::to_string(bytes) + "\n";
  if (file >= 0 && bytes > 0 && ::write(file, line.data(), line.size()) < 0)
    std::abort();  // a test must not count wrongly
}

/// Calls `write` after the delay, and notes what it wrote.
template <class Write>
ssize_t delayed(int descriptor, size_t bytes, Write const& write) {
  if (!is_meant(descriptor)) return write();
  delay(bytes);
  ssize_t const written = write();
  note(written);
  return written;
}

template <class Function>
Function* next(char const* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t pwritev2(int descriptor, iovec const* parts, int count, off_t offset, int flags) {
  static auto* const real = next<decltype(pwritev2)>("pwritev2");
  size_t bytes = 0;
  for (int part = 0; part < count; ++part) bytes += parts[part].iov_len;
  return delayed(descriptor, bytes, [&] { return real(descriptor, parts, count, offset, flags); });
}

ssize_t pwrite(int descriptor, void const* from, size_t count, off_t offset) {
  static auto* const real = next<decltype(pwrite)>("pwrite");
  return delayed(descriptor, count, [&] { return real(descriptor, from, count, offset); });
}

}  // extern "C"
