#include "core/transport/monitor/patience.hpp"

#include <thread>
#include <utility>

#include <fmt/ranges.h>
#include <sched.h>

namespace reshard {
namespace {

// Ranks may share cores with the reader and the writer: after a moment without progress, sleep
// between polls.
constexpr double eager_seconds = 0.005;
constexpr std::chrono::microseconds nap{50};

}  // namespace

Patience::Patience(double timeout_seconds, std::function<void()> while_waiting)
    : stall_clock_(timeout_seconds), while_waiting_(std::move(while_waiting)) {}

bool Patience::wait() {
  auto const began = Clock::now();
  if (while_waiting_) while_waiting_();
  double const without_news = stall_clock_.look(began);
  if (without_news > timeout_seconds()) return false;
  if (without_news < eager_seconds)
    ::sched_yield();
  else
    std::this_thread::sleep_for(nap);
  waited_seconds_ += std::chrono::duration<double>(Clock::now() - began).count();
  return true;
}

Error stalled(double timeout_seconds, std::string_view awaited) {
  return {ErrorKind::stall,
          fmt::format(
              "no message was received or sent for {} s. Still waiting for messages{}. Check those "
              "ranks and their hosts, then run again.",
              timeout_seconds, awaited)};
}

std::string awaited_text(std::span<int const> peers) {
  return fmt::format(" from or to rank{} {}", peers.size() == 1 ? "" : "s", fmt::join(peers, ", "));
}

}  // namespace reshard
