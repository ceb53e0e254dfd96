#include "core/transport/patience.hpp"

#include <thread>
#include <utility>

#include <fmt/ranges.h>
#include <sched.h>

namespace reshard {
namespace {

// Ranks may share cores with the reader and the writer: after a moment without news, sleep between looks.
constexpr std::chrono::milliseconds eager_time{5};
constexpr std::chrono::microseconds nap{50};

}  // namespace

Patience::Patience(double timeout_seconds, std::function<void()> while_waiting)
    : timeout_seconds_(timeout_seconds), while_waiting_(std::move(while_waiting)) {}

bool Patience::wait() {
  auto const began = Clock::now();
  if (while_waiting_) while_waiting_();
  if (began - last_progress_ > std::chrono::duration<double>(timeout_seconds_)) return false;
  if (began - last_progress_ < eager_time)
    ::sched_yield();
  else
    std::this_thread::sleep_for(nap);
  waited_seconds_ += std::chrono::duration<double>(Clock::now() - began).count();
  return true;
}

Error stalled(double timeout_seconds, std::string_view awaited) {
  return {ErrorKind::stall,
          fmt::format("no message came or left for {} s. Still waiting for messages{}. Look at those ranks and their hosts, then run again.",
                      timeout_seconds, awaited)};
}

std::string awaited_text(std::span<int const> peers) {
  return fmt::format(" from or to rank{} {}", peers.size() == 1 ? "" : "s", fmt::join(peers, ", "));
}

}  // namespace reshard
