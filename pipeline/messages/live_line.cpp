#include "pipeline/messages/live_line.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include <fmt/format.h>

namespace reshard::live_line {
namespace {

constexpr std::size_t usual_columns = 80;

std::mutex mutex;    // of stderr while it has the line
bool drawn = false;  // something is

/// The terminal on which stderr is seen: our own, or that of mpirun, which passes our words on from
/// a pipe. -1 for none; else to be closed.
int open_terminal() {
  if (::isatty(STDERR_FILENO) == 1) return ::dup(STDERR_FILENO);
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return -1;
  std::string const path = fmt::format("/proc/{}/fd/{}", ::getppid(), STDERR_FILENO);
  int const file = ::open(path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0 || ::isatty(file) == 1) return file;
  ::close(file);
  return -1;
}

void put(std::string const& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

bool on_terminal() {
  char const* const term = std::getenv("TERM");
  if (term != nullptr && std::string_view(term) == "dumb") return false;
  int const terminal = open_terminal();
  if (terminal >= 0) ::close(terminal);
  return terminal >= 0;
}

std::size_t width() {
  int const terminal = open_terminal();
  winsize size{};
  bool const known = terminal >= 0 && ::ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  if (terminal >= 0) ::close(terminal);
  return (known ? size.ws_col : usual_columns) - 1;  // the last column may wrap
}

void draw(std::string_view text) {
  std::lock_guard const lock(mutex);
  put(fmt::format("\r{}\x1b[K", text));
  drawn = true;
}

void finish(std::string_view text) {
  std::lock_guard const lock(mutex);
  put(fmt::format("\r{}\x1b[K\n", text));
  drawn = false;
}

void clear() {
  std::lock_guard const lock(mutex);
  if (drawn) put("\r\x1b[K");
  drawn = false;
}

}  // namespace reshard::live_line
