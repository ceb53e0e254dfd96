#include "core/base/files/open_descriptors.hpp"

#include <gtest/gtest.h>

#include <array>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace reshard {
namespace {

bool is_open(int descriptor) { return ::fcntl(descriptor, F_GETFD) >= 0; }

TEST(OpenDescriptors, ExecClosesThoseAboveStandardError) {
  int const one = ::dup(STDIN_FILENO);
  int const kept = ::dup(STDIN_FILENO);
  leave_descriptors(Leave::on_exec, std::array{kept});
  EXPECT_EQ(::fcntl(one, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(::fcntl(kept, F_GETFD), 0);
  EXPECT_EQ(::fcntl(STDERR_FILENO, F_GETFD), 0);
  ::close(one);
  ::close(kept);
}

/// More of them than one answer of getdents64 holds.
TEST(OpenDescriptors, AllButThoseThatAreKeptAreClosed) {
  pid_t const child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::array<int, 300> many{};
    for (int& descriptor : many) descriptor = ::dup(STDIN_FILENO);
    leave_descriptors(Leave::now, std::array{many[150]});
    bool right = is_open(many[150]) && is_open(STDERR_FILENO);
    for (int const descriptor : many)
      right = right && (descriptor == many[150] || !is_open(descriptor));
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace reshard
