#pragma once

#include <string>
#include <string_view>

#include "core/base/text/json.hpp"

namespace reshard {

/// Where the events of a run go: a line of JSON each (NDJSON), in one write, at the end of the
/// file.
class EventFile {
 public:
  /// A path, or "-" for stdout. Error: usage where the system refuses, and for a file that has
  /// other things in it.
  explicit EventFile(std::string const& path);
  ~EventFile();
  EventFile(EventFile const&) = delete;
  EventFile& operator=(EventFile const&) = delete;

  /// Adds {"type": type, "time": "2026-11-22T19:31:05.123Z", ...}. What cannot be written is said
  /// once on stderr: it is no reason to stop a job.
  void add(std::string_view type, Json members);

 private:
  std::string path_;
  int file_ = -1;
  bool failed_ = false;
};

}  // namespace reshard
