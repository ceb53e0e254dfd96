#include "core/transport/monitor/heartbeat.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace reshard {
namespace {

constexpr std::uint64_t alive = 1;
constexpr std::uint64_t farewell = 2;
constexpr std::chrono::milliseconds pause{50};
constexpr std::chrono::milliseconds leaving_pause{1};
constexpr double most_seconds_between_beats = 1;

bool done(MPI_Request& request) {
  int flag = 0;
  check_mpi(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
  return flag != 0;
}

}  // namespace

Heartbeat::Heartbeat(Comm const& comm, double timeout_seconds)
    : comm_(comm),
      watchdog_(comm, timeout_seconds),
      between_beats_(std::min(most_seconds_between_beats, timeout_seconds / 4)),
      silence_(timeout_seconds) {
  if (comm.size() == 1) return;
  int level = 0;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  if (level < MPI_THREAD_MULTIPLE) return;
  check_mpi(MPI_Comm_dup(comm.handle(), &own_), "MPI_Comm_dup");
  next_ = (comm.rank() + 1) % comm.size();
  before_ = (comm.rank() + comm.size() - 1) % comm.size();
  hear();
  silence_.begin();
  say(alive);
  thread_ = std::jthread([this] {
    // A failed MPI call has no remedy here; the main thread will fail, too.
    if (auto const error = capture([this] { beat(); })) comm_.abort(*error);
  });
}

Heartbeat::~Heartbeat() {
  std::lock_guard const lock(mutex_);
  leaving_ = true;
  changed_.notify_all();
}

bool Heartbeat::rest() {
  std::unique_lock lock(mutex_);
  if (leaving_) {
    lock.unlock();
    std::this_thread::sleep_for(leaving_pause);
    return true;
  }
  return changed_.wait_for(lock, pause, [&] { return leaving_; });
}

void Heartbeat::say(std::uint64_t word) {
  said_ = word;
  last_said_ = Clock::now();
  check_mpi(MPI_Isend(&said_, 1, MPI_UINT64_T, next_, 0, own_, &saying_), "MPI_Isend");
}

void Heartbeat::hear() {
  check_mpi(MPI_Irecv(&heard_, 1, MPI_UINT64_T, before_, 0, own_, &hearing_), "MPI_Irecv");
}

void Heartbeat::beat() {
  bool left = false;
  while (!left || !before_left_ || !done(saying_)) {
    bool const leaving = rest();
    if (!before_left_ && done(hearing_)) {
      silence_.begin();
      before_left_ = heard_ == farewell;
      if (!before_left_) hear();
    }
    if (!left && done(saying_)) {
      if (leaving) {
        left = true;
        say(farewell);
      } else if (Clock::now() - last_said_ >= between_beats_) {
        say(alive);
      }
    }
    if (double const seconds = silence_.look();
        !before_left_ && seconds > silence_.timeout_seconds())
      lost(seconds);
  }
}

void Heartbeat::lost(double seconds) const {
  comm_.abort(Error(
      ErrorKind::stall,
      fmt::format(
          "no heartbeat from rank {} for {:.0f} s: its process hangs, or its host or the network "
          "to it is down. Check that host, then run the same command again: a job resumes where "
          "it stopped.",
          before_, seconds)));
}

}  // namespace reshard
