// Loaded in front of libc (LD_PRELOAD): breaks one read, write or message of one rank, as failing
// hardware would, without telling the program; or one call fails as a network file system lets it
// fail.
//
//   RESHARD_FAULT        count | flip-read | flip-write | drop-write | swap-write | flip-message |
//   no-locks (as a file system without flock) |
//                        quota-close | interrupt-close | interrupt-fsync | interrupt-open |
//                        interrupt-ftruncate (EDQUOT, EINTR) | zero-write (this and all later
//                        writes take nothing)
//   RESHARD_FAULT_PATH   calls on files with this in their path
//   RESHARD_FAULT_RANK, RESHARD_FAULT_CALL   which rank, and which of its calls from 0 on
//   RESHARD_FAULT_SEED   which bit
//   RESHARD_FAULT_LOG    gets "path offset" of what was broken, or with `count` the number of calls

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <mpi.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/support/intercepted.hpp"

namespace {

using namespace intercepted;

struct Plan {
  std::string kind = setting("RESHARD_FAULT");
  std::string path = setting("RESHARD_FAULT_PATH");
  std::string log = setting("RESHARD_FAULT_LOG");
  std::uint64_t call = number_in(setting("RESHARD_FAULT_CALL"));
  std::uint64_t seed = number_in(setting("RESHARD_FAULT_SEED"));
  bool mine = setting("RESHARD_FAULT_RANK") == setting("OMPI_COMM_WORLD_RANK");
  std::atomic<std::uint64_t> reads = 0;
  std::atomic<std::uint64_t> writes = 0;
  std::atomic<std::uint64_t> messages = 0;
  std::atomic<std::uint64_t> others = 0;

  void note(std::string const& text) const {
    if (std::FILE* const file = std::fopen(log.c_str(), "w")) {
      std::fputs(text.c_str(), file);
      std::fclose(file);
    }
  }
  void count() const {
    if (kind == "count" && mine)
      note(std::to_string(reads) + " " + std::to_string(writes) + " " + std::to_string(messages));
  }
};

/// Never destroyed: files are closed until the very end.
Plan& plan() {
  static Plan* const one = [] {
    std::atexit([] { plan().count(); });
    return new Plan;
  }();
  return *one;
}

/// Whether this is the call to break.
bool due(std::atomic<std::uint64_t>& calls, std::string_view kind, std::string const& path) {
  Plan& faults = plan();
  if (!faults.mine || (!path.empty() && path.find(faults.path) == std::string::npos)) return false;
  std::uint64_t const number = calls++;
  return faults.kind.ends_with(kind) && number == faults.call;
}

/// Whether this call fails: the chosen one of its kind.
bool fails(std::string_view kind, std::string const& path) {
  if (!plan().kind.ends_with(kind) || !due(plan().others, kind, path)) return false;
  plan().note(path);
  errno = plan().kind.starts_with("quota") ? EDQUOT : EINTR;
  return true;
}

/// Whether the device takes nothing any more.
bool takes_nothing(std::string const& path) {
  Plan& faults = plan();
  if (faults.kind != "zero-write" || !faults.mine || path.find(faults.path) == std::string::npos ||
      faults.writes++ < faults.call)
    return false;
  faults.note(path);
  return true;
}

/// Flips one bit and says where.
std::uint64_t flip(void* bytes, std::uint64_t count) {
  std::uint64_t const bit = plan().seed % (8 * count);
  static_cast<unsigned char*>(bytes)[bit / 8] ^= static_cast<unsigned char>(1U << bit % 8);
  return bit / 8;
}

/// The bytes that are written instead of `bytes`.
std::vector<char> broken(std::vector<char> bytes, std::string const& path, std::uint64_t offset) {
  std::uint64_t at = 0;
  bool changed = true;
  if (plan().kind == "swap-write") {
    std::size_t const half = bytes.size() / 2;
    std::vector<char> const before = bytes;
    std::swap_ranges(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(half),
                     bytes.begin() + static_cast<std::ptrdiff_t>(half));
    changed = bytes != before;
  } else if (plan().kind == "flip-write") {
    at = flip(bytes.data(), bytes.size());
  } else {
    changed = std::string_view(bytes.data(), bytes.size()).find_first_not_of('\0') !=
              std::string_view::npos;
  }
  if (changed) plan().note(path + " " + std::to_string(offset + at));
  return bytes;
}

}  // namespace

extern "C" {

ssize_t preadv(int descriptor, iovec const* parts, int count, off_t offset) {
  ssize_t const got = next<decltype(preadv)>("preadv")(descriptor, parts, count, offset);
  std::string const path = path_of(descriptor);
  if (got > 0 && due(plan().reads, "-read", path)) {
    std::uint64_t const at =
        flip(parts[0].iov_base,
             std::min<std::uint64_t>(parts[0].iov_len, static_cast<std::uint64_t>(got)));
    plan().note(path + " " + std::to_string(static_cast<std::uint64_t>(offset) + at));
  }
  return got;
}

ssize_t pwritev2(int descriptor, iovec const* parts, int count, off_t offset, int flags) {
  RESHARD_REAL(pwritev2);
  std::string const path = path_of(descriptor);
  if (plan().kind == "zero-write")
    return takes_nothing(path) ? 0 : real(descriptor, parts, count, offset, flags);
  if (!due(plan().writes, "-write", path)) return real(descriptor, parts, count, offset, flags);
  std::vector<char> bytes;
  for (int i = 0; i < count; ++i)
    bytes.insert(bytes.end(), static_cast<char*>(parts[i].iov_base),
                 static_cast<char*>(parts[i].iov_base) + parts[i].iov_len);
  bytes = broken(std::move(bytes), path, static_cast<std::uint64_t>(offset));
  if (plan().kind == "drop-write") return static_cast<ssize_t>(bytes.size());
  iovec const one{bytes.data(), bytes.size()};
  return real(descriptor, &one, 1, offset, flags);
}

ssize_t pwrite(int descriptor, void const* from, size_t count, off_t offset) {
  RESHARD_REAL(pwrite);
  std::string const path = path_of(descriptor);
  if (plan().kind == "zero-write")
    return takes_nothing(path) ? 0 : real(descriptor, from, count, offset);
  if (count == 0 || !due(plan().writes, "-write", path))
    return real(descriptor, from, count, offset);
  auto const* const begin = static_cast<char const*>(from);
  std::vector<char> const bytes =
      broken({begin, begin + count}, path, static_cast<std::uint64_t>(offset));
  return plan().kind == "drop-write" ? static_cast<ssize_t>(count)
                                     : real(descriptor, bytes.data(), count, offset);
}

int open(char const* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t const mode = mode_of(flags, rest);
  va_end(rest);
  if (fails("-open", path)) return -1;
  return next<int(char const*, int, ...)>("open")(path, flags, mode);
}

int fsync(int descriptor) {
  return fails("-fsync", path_of(descriptor)) ? -1 : next<decltype(fsync)>("fsync")(descriptor);
}

int ftruncate(int descriptor, off_t bytes) {
  return fails("-ftruncate", path_of(descriptor))
             ? -1
             : next<decltype(ftruncate)>("ftruncate")(descriptor, bytes);
}

int close(int descriptor) {
  RESHARD_REAL(close);
  if (!plan().kind.ends_with("-close")) return real(descriptor);
  std::string const path = path_of(descriptor);
  int const result = real(descriptor);
  return fails("-close", path) ? -1 : result;
}

int flock(int descriptor, int operation) {
  if (plan().kind != "no-locks") return next<decltype(flock)>("flock")(descriptor, operation);
  errno = EOPNOTSUPP;
  return -1;
}

int MPI_Isend(void const* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  // Payload travels on the world communicator; progress and heartbeats have their own, and decide
  // about no byte.
  if (count == 0 || comm != MPI_COMM_WORLD || !due(plan().messages, "-message", ""))
    return PMPI_Isend(from, count, type, to, tag, comm, request);
  auto* const copy = static_cast<char*>(std::malloc(
      static_cast<std::size_t>(count)));  // must live as long as the message: to the end
  std::memcpy(copy, from, static_cast<std::size_t>(count));
  plan().note("message " + std::to_string(flip(copy, static_cast<std::uint64_t>(count))));
  return PMPI_Isend(copy, count, type, to, tag, comm, request);
}

}  // extern "C"
