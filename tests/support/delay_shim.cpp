// Loaded in front of libc (LD_PRELOAD): makes every write below a folder slow, as a busy file
// system would, so that a small job lasts long enough to be interrupted. How slow is asked anew for
// each write, so that a test can hold a job and let it go. Reads can be slowed, too.
//
//   RESHARD_DELAY_PATH   reads and writes of files with this in their path
//   RESHARD_DELAY_FILE   a file that holds the milliseconds before each such write; none when it is
//   missing. Behind them there may be MiB: so many of them the process writes in a second at most,
//   and MiB again: so many it reads
//   RESHARD_DELAY_LOG    a file that gets a line with the number of bytes after each such write
//   RESHARD_DELAY_READS  the same after each such read
//
// A "%r" in the name of a file is the number of the rank (OMPI_COMM_WORLD_RANK).

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/support/intercepted.hpp"

namespace {

using namespace intercepted;

bool is_meant(int descriptor) {
  static std::string const wanted = setting("RESHARD_DELAY_PATH");
  return !wanted.empty() && path_of(descriptor).find(wanted) != std::string::npos;
}

std::string of_rank(std::string name) {
  if (std::size_t const at = name.find("%r"); at != std::string::npos)
    name.replace(at, 2, setting("OMPI_COMM_WORLD_RANK"));
  return name;
}

/// Lets a process move so many bytes in a second.
class Rate {
 public:
  /// Calls `move`, and returns when its bytes may have been moved, if those before take their time.
  template <class Move>
  ssize_t moved(size_t bytes, double mebibytes_per_second, Move const& move) {
    if (mebibytes_per_second <= 0) return move();
    std::chrono::duration<double> const takes(static_cast<double>(bytes) /
                                              (mebibytes_per_second * (1U << 20U)));
    Clock::time_point turn;
    {
      std::lock_guard const lock(mutex_);
      free_at_ =
          std::max(free_at_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(takes);
      turn = free_at_;
    }
    ssize_t const result = move();
    std::this_thread::sleep_until(turn);
    return result;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::mutex mutex_;
  Clock::time_point free_at_;
};

struct Slowness {
  int milliseconds = 0;  ///< before a write
  double written = 0;    ///< MiB in a second; 0: as fast as it can
  double read = 0;
};

Slowness slowness() {
  static std::string const name = of_rank(setting("RESHARD_DELAY_FILE"));
  Slowness now;
  std::ifstream(name) >> now.milliseconds >> now.written >> now.read;
  return now;
}

/// A file that gets a line for each transfer; none without a name.
class Notes {
 public:
  explicit Notes(std::string const& path)
      : file_(path.empty()
                  ? -1
                  : ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {}

  void add(ssize_t bytes) const {
    std::string const line = std::to_string(bytes) + "\n";
    if (file_ >= 0 && bytes > 0 && ::write(file_, line.data(), line.size()) < 0)
      std::abort();  // a test must not count wrongly
  }

 private:
  int file_;
};

/// Calls `write` after the delay, and notes what it wrote.
template <class Write>
ssize_t delayed(int descriptor, size_t bytes, Write const& write) {
  static Rate rate;
  static Notes const notes(of_rank(setting("RESHARD_DELAY_LOG")));
  if (!is_meant(descriptor)) return write();
  Slowness const slow = slowness();
  std::this_thread::sleep_for(std::chrono::milliseconds(slow.milliseconds));
  ssize_t const written = rate.moved(bytes, slow.written, write);
  notes.add(written);
  return written;
}

/// Calls `read`, and notes what it got.
template <class Read>
ssize_t delayed_read(int descriptor, size_t bytes, Read const& read) {
  static Rate rate;
  static Notes const notes(of_rank(setting("RESHARD_DELAY_READS")));
  if (!is_meant(descriptor)) return read();
  ssize_t const got = rate.moved(bytes, slowness().read, read);
  notes.add(got);
  return got;
}

}  // namespace

extern "C" {

ssize_t pwritev2(int descriptor, iovec const* parts, int count, off_t offset, int flags) {
  RESHARD_REAL(pwritev2);
  return delayed(descriptor, bytes_of(parts, count),
                 [&] { return real(descriptor, parts, count, offset, flags); });
}

ssize_t pwrite(int descriptor, void const* from, size_t count, off_t offset) {
  RESHARD_REAL(pwrite);
  return delayed(descriptor, count, [&] { return real(descriptor, from, count, offset); });
}

ssize_t preadv(int descriptor, iovec const* parts, int count, off_t offset) {
  RESHARD_REAL(preadv);
  return delayed_read(descriptor, bytes_of(parts, count),
                      [&] { return real(descriptor, parts, count, offset); });
}

ssize_t pread(int descriptor, void* into, size_t count, off_t offset) {
  RESHARD_REAL(pread);
  return delayed_read(descriptor, count, [&] { return real(descriptor, into, count, offset); });
}

}  // extern "C"
