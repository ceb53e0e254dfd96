#pragma once

#include <algorithm>
#include <chrono>

namespace reshard {

/// For who looks again and again whether something has moved: says when nothing has for too long.
/// Time in which this process itself stood still (SIGSTOP, `scontrol suspend`) is not a stall:
/// between two looks passes a moment, and whatever passes beyond some seconds does not count.
class StallClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StallClock(double timeout_seconds, Clock::time_point now = Clock::now())
      : timeout_seconds_(timeout_seconds),
        most_between_looks_(std::min(5.0, timeout_seconds / 4)),
        looked_(now) {}

  /// Something moved: the time starts again.
  void begin(Clock::time_point now = Clock::now()) {
    seconds_ = 0;
    looked_ = now;
  }

  /// A look that found nothing new: the seconds since begin() that count.
  double look(Clock::time_point now = Clock::now()) {
    seconds_ += std::min(most_between_looks_, std::chrono::duration<double>(now - looked_).count());
    looked_ = now;
    return seconds_;
  }

  /// A look; true when nothing has moved for the timeout.
  bool is_over(Clock::time_point now = Clock::now()) { return look(now) > timeout_seconds_; }

  double timeout_seconds() const { return timeout_seconds_; }

 private:
  double timeout_seconds_;
  double most_between_looks_;
  double seconds_ = 0;
  Clock::time_point looked_;
};

}  // namespace reshard
