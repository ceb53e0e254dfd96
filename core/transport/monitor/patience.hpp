#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.hpp"
#include "core/base/threads/stall_clock.hpp"

namespace reshard {

/// The back-off timer of a thread that polls for the progress of another rank or a device: it
/// sleeps between polls and detects that there was no progress for too long.
///
///   patience.begin();
///   while (!done()) {
///     if (look()) patience.begin();
///     else if (!patience.wait()) give_up(stalled(…));
///   }
class Patience {
 public:
  /// `while_waiting` is called at every wait; it may throw to give up. It may be empty.
  Patience(double timeout_seconds, std::function<void()> while_waiting);

  /// Reports progress: the time starts again.
  void begin() { stall_clock_.begin(); }
  /// To be called after a poll without progress: yields the core at first, later sleeps for a
  /// moment. False, without delay, if there was no progress for the timeout.
  [[nodiscard]] bool wait();

  double timeout_seconds() const { return stall_clock_.timeout_seconds(); }
  /// The time spent in wait() so far.
  double waited_seconds() const { return waited_seconds_; }

 private:
  using Clock = std::chrono::steady_clock;
  StallClock stall_clock_;
  std::function<void()> while_waiting_;
  double waited_seconds_ = 0;
};

/// An Error of kind stall: no message arrived or left for the timeout. `awaited` lists the missing
/// messages, as in " from rank 3 (12.0 MiB)".
Error stalled(double timeout_seconds, std::string_view awaited);

/// " from or to ranks 1, 3", for stalled().
std::string awaited_text(std::span<int const> peers);

}  // namespace reshard
