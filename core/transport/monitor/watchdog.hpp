#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/transport/comm.hpp"

namespace reshard {

/// Ends a job whose rank hangs: when neither a file step of the process ends nor its main thread
/// computes for too long, and it does not wait for other ranks either, the job ends with exit code
/// 8 on all ranks. The sentence names the rank, the phase and the file. Each rank watches itself; a
/// rank that waits in MPI waits for another rank, with a watchdog of its own, and lost ranks are
/// detected by Heartbeat.
class Watchdog {
 public:
  /// From the thread to be watched. Not collective.
  Watchdog(Comm const& comm, double timeout_seconds);
  ~Watchdog();
  Watchdog(Watchdog const&) = delete;
  Watchdog& operator=(Watchdog const&) = delete;

 private:
  void watch();
  double main_cpu_seconds() const;

  Comm const comm_;
  double timeout_seconds_;
  clockid_t main_clock_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool leaving_ = false;
  std::jthread thread_;
};

}  // namespace reshard
