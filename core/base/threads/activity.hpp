#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace reshard {

/// Registers a system call that may hang for as long as the call lasts, so that a watchdog can name
/// the place. Any thread.
class FileStep {
 public:
  /// Both arguments must outlive the object.
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

/// While an object lives, the main thread waits for other ranks or for a thread with a watchdog of
/// its own.
class Waiting {
 public:
  Waiting();
  ~Waiting();
  Waiting(Waiting const&) = delete;
  Waiting& operator=(Waiting const&) = delete;
};

/// The current activity of this process, as another thread can see it.
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

/// Sets Activity::phase.
void begin_phase(std::string_view name);
/// How far it is. Any thread.
void advance_phase(std::uint64_t done_bytes, std::uint64_t total_bytes);

}  // namespace reshard
