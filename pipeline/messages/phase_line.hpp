#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "core/base/threads/activity.hpp"

namespace reshard {

/// Shows what this process does (begin_phase) while nothing else does: on a terminal a line with
/// the time since, else a line for each phase. Phases that end within a moment are not shown.
class PhaseLine {
 public:
  enum class Style { none, live, lines };
  /// One at a time. It may begin before MPI does.
  explicit PhaseLine(Style style);
  ~PhaseLine();
  PhaseLine(PhaseLine const&) = delete;
  PhaseLine& operator=(PhaseLine const&) = delete;

  /// How the running one shows phases from here on. Without one nothing happens.
  static void use(Style style);
  /// While a stage shows how far it is, its phase is not shown.
  static void hold(bool held);

 private:
  void watch();
  void show();

  Style style_;
  bool held_ = false;
  bool ended_ = false;
  bool drawn_ = false;
  std::string noted_;  ///< the phase that has had its line
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
};

/// "0:03:26"; hours may have any number of digits.
std::string clock_text(double seconds);
/// "comparing  39 %  0:00:12": a phase, how much of its bytes is done where that is known, and
/// since when.
std::string phase_text(Activity const& activity);

}  // namespace reshard
