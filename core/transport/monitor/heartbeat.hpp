#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include <mpi.h>

#include "core/base/threads/stall_clock.hpp"
#include "core/transport/comm.hpp"
#include "core/transport/monitor/watchdog.hpp"

namespace reshard {

/// The timeout of a silent rank if no job sets it.
inline constexpr double usual_silence_seconds = 600;

/// Detects lost ranks: a host without power, a cut link, a stopped process. MPI itself waits for
/// them indefinitely. Each rank sends the next one a heartbeat once a second, or four times within
/// a shorter timeout, on a communicator and a thread of its own; a rank that receives none from the
/// rank before it for the timeout ends the job with exit code 8. Other work of a rank does not
/// matter. A job whose ranks were all suspended continues.
///
/// With one rank, or without MPI_THREAD_MULTIPLE, only this rank's own Watchdog is active.
class Heartbeat {
 public:
  /// From the main thread. Collective.
  Heartbeat(Comm const& comm, double timeout_seconds);
  /// Sends a farewell to the next rank and waits for that of the rank before, at most for the
  /// timeout.
  ~Heartbeat();
  /// Whether lost ranks are detected.
  bool hears_others() const { return own_ != MPI_COMM_NULL; }
  Heartbeat(Heartbeat const&) = delete;
  Heartbeat& operator=(Heartbeat const&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  void beat();
  /// Sleeps a little; true once this rank is to leave.
  bool rest();
  void say(std::uint64_t word);
  void hear();
  [[noreturn]] void lost(double seconds) const;

  Comm const comm_;
  Watchdog watchdog_;
  std::chrono::duration<double> between_beats_;
  MPI_Comm own_ = MPI_COMM_NULL;
  int next_ = 0;
  int before_ = 0;
  std::uint64_t said_ = 0;
  std::uint64_t heard_ = 0;
  MPI_Request saying_ = MPI_REQUEST_NULL;
  MPI_Request hearing_ = MPI_REQUEST_NULL;
  Clock::time_point last_said_;
  StallClock silence_;  // of the rank before
  bool before_left_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool leaving_ = false;
  std::jthread thread_;
};

}  // namespace reshard
