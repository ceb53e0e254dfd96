#pragma once

#include <algorithm>
#include <chrono>

namespace reshard {

/// Detects, for a caller that polls for progress, that there was none for too long. Time in which
/// this process itself was stopped (SIGSTOP, `scontrol suspend`) is not a stall: of the time
/// between two polls at most some seconds count.
class StallClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StallClock(double timeout_seconds, Clock::time_point now = Clock::now())
      : timeout_seconds_(timeout_seconds),
        most_between_looks_(std::min(5.0, timeout_seconds / 4)),
        looked_(now) {}

  /// Reports progress: the time starts again.
  void begin(Clock::time_point now = Clock::now()) {
    seconds_ = 0;
    looked_ = now;
  }

  /// A poll without progress: returns the seconds since begin() that count.
  double look(Clock::time_point now = Clock::now()) {
    seconds_ += std::min(most_between_looks_, std::chrono::duration<double>(now - looked_).count());
    looked_ = now;
    return seconds_;
  }

  /// A poll without progress; true if there was none for the timeout.
  bool is_over(Clock::time_point now = Clock::now()) { return look(now) > timeout_seconds_; }

  double timeout_seconds() const { return timeout_seconds_; }

 private:
  double timeout_seconds_;
  double most_between_looks_;
  double seconds_ = 0;
  Clock::time_point looked_;
};

}  // namespace reshard
