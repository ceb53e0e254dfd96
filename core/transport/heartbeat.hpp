#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include <mpi.h>

#include "core/base/stall_clock.hpp"
#include "core/transport/comm.hpp"
#include "core/transport/watchdog.hpp"

namespace reshard {

/// How long a rank may be silent where no job says it.
inline constexpr double usual_silence_seconds = 600;

/// Notices ranks that are gone without a word: a host without power, a cut link, a stopped process.
/// MPI itself waits for them indefinitely. Each rank sends the next one a sign of life once a
/// second, or four times within a shorter timeout, on a communicator and a thread of its own; who
/// hears nothing of the rank before it for too long ends the job with exit code 8. Whatever else a
/// rank does, or waits for, makes no difference. A job whose ranks were all suspended continues.
///
/// With one rank, or where MPI may not be called from several threads (MPI_THREAD_MULTIPLE), only
/// this rank's own Watchdog is at work.
class Heartbeat {
 public:
  /// From the main thread. Collective.
  Heartbeat(Comm const& comm, double timeout_seconds);
  /// Takes leave of the next rank and waits for the one before it to do so, as long as the timeout.
  ~Heartbeat();
  /// Whether a rank that is gone would be noticed.
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
