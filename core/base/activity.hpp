#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace reshard {

/// A call that may hang in the system, while it lasts: who watches the process can say where it
/// hangs. Any thread.
class FileStep {
 public:
  /// What it refers to outlives it.
  FileStep(std::string_view doing, std::filesystem::path const& path);
  ~FileStep();
  FileStep(FileStep const&) = delete;
  FileStep& operator=(FileStep const&) = delete;

 private:
  friend struct Activity;
  std::string_view doing_;
  std::filesystem::path const& path_;
  std::chrono::steady_clock::time_point began_;
  FileStep* before_ = nullptr;
  FileStep* after_ = nullptr;
};

/// The main thread waits for other ranks, or for what has a watch of its own, while it is alive.
class Waiting {
 public:
  Waiting();
  ~Waiting();
  Waiting(Waiting const&) = delete;
  Waiting& operator=(Waiting const&) = delete;
};

/// What this process is doing, as another thread can see it.
struct Activity {
  std::uint64_t steps = 0;  ///< file steps that have ended
  bool waiting = false;
  std::string phase;              ///< "planning"
  double phase_seconds = 0;       ///< since it began
  std::uint64_t done_bytes = 0;   ///< of the phase, of this process
  std::uint64_t total_bytes = 0;  ///< 0: not known
  std::string step;  ///< the file step that has lasted longest: "fsync of /data/x"; "" for none
  static Activity now();
};

/// Names what comes next, for Activity.
void begin_phase(std::string_view name);
/// How far it is. Any thread.
void advance_phase(std::uint64_t done_bytes, std::uint64_t total_bytes);

}  // namespace reshard
