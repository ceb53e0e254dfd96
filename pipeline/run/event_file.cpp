#include "pipeline/run/event_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "pipeline/messages/log.hpp"

namespace reshard {
namespace {

constexpr std::string_view event_beginning = R"({"type": ")";

/// Whether a file may be added to: it has no bytes, or begins as ours do. What is not a file (a
/// pipe) has none.
bool holds_events(std::string const& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return true;
  std::string beginning(event_beginning.size(), ' ');
  std::ifstream file(path);
  file.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  return file.gcount() == 0 || beginning == event_beginning;
}

}  // namespace

EventFile::EventFile(std::string const& path) : path_(path) {
  if (path == "-") {
    file_ = ::dup(STDOUT_FILENO);
    path_ = "stdout";
  } else {
    // Non-blocking: opening a pipe without a reader would wait indefinitely.
    file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (file_ >= 0 && !holds_events(path)) {
      ::close(file_);
      fail(ErrorKind::usage,
           "--events {}: exists and contains other data than events. Choose another path.", path_);
    }
  }
  if (file_ < 0)
    fail(ErrorKind::usage, "--events {}: cannot be written: {}. Choose another path.", path_,
         system_reason(errno));
}

EventFile::~EventFile() { ::close(file_); }

void EventFile::add(std::string_view type, Json members) {
  if (failed_) return;
  Json event;
  event.set("type", type).set("time", utc_now());
  if (members.members() != nullptr)
    for (auto const& [key, value] : *members.members()) event.set(key, value);
  std::string const line = event.dump() + "\n";
  ssize_t done = 0;
  do done = ::write(file_, line.data(), line.size());
  while (done < 0 && errno == EINTR);
  if (done == static_cast<ssize_t>(line.size())) return;
  failed_ = true;
  log(LogLevel::warning,
      fmt::format("--events {}: cannot be written: {}. No further events are written.", path_,
                  system_reason(errno)));
}

}  // namespace reshard
