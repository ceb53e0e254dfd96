#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_set>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/error.hpp"

namespace reshard {
namespace {

/// A field of a line: separators of fields and lines become spaces.
void append(std::string& line, std::string_view field) {
  for (char const c : field) line += static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? ' ' : c;
}

/// Many refusals of one test differ in numbers only, such as offsets of a damaged byte.
std::string without_numbers(std::string_view line) {
  std::string result;
  for (char const c : line) {
    bool const digit = c >= '0' && c <= '9';
    if (!digit)
      result += c;
    else if (result.empty() || result.back() != '0')
      result += '0';
  }
  return result;
}

/// By system calls of its own: a test's wrappers of libc calls do not see them. False where the
/// file cannot be opened, as in a test that leaves no descriptors.
bool add_lines(char const* path, std::string const& lines) {
  long const file =
      ::syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return false;
  (void)::syscall(SYS_write, file, lines.data(), lines.size());  // in one piece: others append too
  (void)::syscall(SYS_close, file);
  return true;
}

/// Restores errno: callers may read it after a failed call.
struct ErrnoKept {
  int const value = errno;
  ~ErrnoKept() { errno = value; }
};

}  // namespace

void record_refusal(ErrorKind kind, std::string_view format, std::string_view sentence,
                    std::source_location const& place) {
  char const* const path = std::getenv("RESHARD_REFUSALS_TO");
  if (path == nullptr) return;
  ErrnoKept const reason;
  try {
    char const* const test = std::getenv("RESHARD_REFUSALS_OF");
    std::string line;
    append(line, test == nullptr ? "" : test);
    fmt::format_to(std::back_inserter(line), "\t{}\t{}\t{}\t", place.file_name(), place.line(),
                   exit_code(kind));
    append(line, format);
    line += '\t';
    constexpr std::size_t most = 3000;
    append(line, sentence.substr(0, most));
    line += '\n';
    static auto* const seen = new std::unordered_set<std::string>;
    static auto* const mutex = new std::mutex;
    static auto* const kept = new std::string;  // until the next refusal
    std::lock_guard const lock(*mutex);
    constexpr std::size_t enough = 20000;
    if (seen->size() >= enough || !seen->insert(without_numbers(line)).second) return;
    *kept += line;
    if (add_lines(path, *kept)) kept->clear();
  } catch (std::exception const&) {  // the refusal itself matters more
  }
}

}  // namespace reshard
