#include "core/base/files/open_descriptors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace reshard {
namespace {

constexpr int without_proc = 1024;

void leave_one(int descriptor, Leave leave, std::span<int const> kept) noexcept {
  if (descriptor <= STDERR_FILENO || std::ranges::find(kept, descriptor) != kept.end()) return;
  if (leave == Leave::now)
    ::close(descriptor);
  else if (int const flags = ::fcntl(descriptor, F_GETFD); flags >= 0)
    ::fcntl(descriptor, F_SETFD, flags | FD_CLOEXEC);
}

/// The number that a name in /proc/self/fd is; -1 for "." and "..".
int number_of(char const* name) noexcept {
  int number = *name == '.' ? -1 : 0;
  for (; number >= 0 && *name != '\0'; ++name) number = 10 * number + (*name - '0');
  return number;
}

}  // namespace

void leave_descriptors(Leave leave, std::span<int const> kept) noexcept {
  int const folder = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) {
    for (int descriptor = 0; descriptor < without_proc; ++descriptor)
      leave_one(descriptor, leave, kept);
    return;
  }
  // struct linux_dirent64 of getdents64(2): inode 8, offset 8, length of the entry 2, type 1, name.
  constexpr std::size_t length_at = 16;
  constexpr std::size_t name_at = 19;
  alignas(std::uint64_t) char entries[4096];
  for (;;) {
    long const got = ::syscall(SYS_getdents64, folder, entries, sizeof entries);
    if (got <= 0) break;
    for (long at = 0; at < got;) {
      std::uint16_t length = 0;
      std::memcpy(&length, entries + at + length_at, sizeof length);
      int const descriptor = number_of(entries + at + name_at);
      if (descriptor != folder) leave_one(descriptor, leave, kept);
      at += length;
    }
  }
  ::close(folder);
}

}  // namespace reshard
