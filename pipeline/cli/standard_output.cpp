#include "pipeline/cli/standard_output.hpp"

#include <cerrno>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "core/base/files/file.hpp"
#include "pipeline/messages/live_line.hpp"
#include "pipeline/messages/phase_line.hpp"

namespace reshard {

void guard_standard_streams() {
  for (int const descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free descriptor is this one: those below it are open.
    [[maybe_unused]] int const opened =
        ::open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_RDWR);
  }
}

void write_to_stdout(std::string_view text) {
  PhaseLine::hold(true);
  live_line::clear();
  while (!text.empty()) {
    ssize_t const done = ::write(STDOUT_FILENO, text.data(), text.size());
    if (done >= 0) {
      text.remove_prefix(static_cast<std::size_t>(done));
      continue;
    }
    int const reason = errno;
    if (reason == EPIPE) return;
    if (reason == EINTR) continue;
    if (reason == EAGAIN) {  // a pipe that its other owners made non-blocking
      pollfd waiting{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&waiting, 1, -1);
      continue;
    }
    bool const full = reason == ENOSPC || reason == EDQUOT || reason == EFBIG;
    fail(full ? ErrorKind::resources : ErrorKind::io, "stdout: cannot be written: {}. {}",
         system_reason(reason),
         full ? "Free space or raise the limit."
              : "Check what it is "
                "connected to.");
  }
}

}  // namespace reshard
