#include "core/transport/monitor/watchdog.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>

#include <pthread.h>

#include "core/base/threads/activity.hpp"
#include "core/base/threads/stall_clock.hpp"

namespace reshard {
namespace {

constexpr double most_seconds_between_looks = 1;
/// A thread that only polls for the end of others takes a smaller share of a core.
constexpr double computing_share = 0.05;

}  // namespace

Watchdog::Watchdog(Comm const& comm, double timeout_seconds)
    : comm_(comm), timeout_seconds_(timeout_seconds) {
  if (::pthread_getcpuclockid(::pthread_self(), &main_clock_) != 0) return;  // not on Linux
  thread_ = std::jthread([this] { watch(); });
}

Watchdog::~Watchdog() {
  std::lock_guard const lock(mutex_);
  leaving_ = true;
  changed_.notify_all();
}

double Watchdog::main_cpu_seconds() const {
  timespec time{};
  return ::clock_gettime(main_clock_, &time) == 0
             ? static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9
             : 0;
}

void Watchdog::watch() {
  std::chrono::duration<double> const pause(
      std::min(most_seconds_between_looks, timeout_seconds_ / 8));
  StallClock standing(timeout_seconds_);
  std::uint64_t steps = 0;
  double cpu = main_cpu_seconds();
  for (;;) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, pause, [&] { return leaving_; })) return;
    Activity const now = Activity::now();
    double const cpu_now = main_cpu_seconds();
    bool const moves =
        now.waiting || now.steps != steps || cpu_now - cpu > computing_share * pause.count();
    steps = now.steps;
    cpu = cpu_now;
    if (moves) standing.begin();
    if (!standing.is_over()) continue;
    comm_.abort(Error(
        ErrorKind::stall,
        fmt::format(
            "{}: no progress for {:.0f} s{}. Check the file systems of this job, then run the "
            "same command again: a job resumes where it stopped.",
            now.phase.empty() ? "at work" : now.phase, timeout_seconds_,
            now.step.empty() ? "" : ", during " + now.step)));
  }
}

}  // namespace reshard
