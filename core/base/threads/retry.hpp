#pragma once

#include <cerrno>
#include <utility>

namespace reshard {

/// Makes a system call again for as long as a signal interrupts it: signals ask this program to
/// stop at a safe moment; they are not a failure of the file system. `call` returns a negative
/// number and sets errno if it fails.
template <class Call>
auto retried(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace reshard
