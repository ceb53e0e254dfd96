#include "core/transport/rank_threads.hpp"

#include <algorithm>
#include <string>
#include <thread>

#include <sched.h>

#include "core/transport/nccl/host_identity.hpp"

namespace reshard {
namespace {

/// More do not make a stage faster where one rank has a whole node.
constexpr std::size_t most_threads = 8;

}  // namespace

std::size_t rank_threads(Comm const& comm) {
  std::string const here = host_name();
  auto const ranks_here =
      static_cast<std::size_t>(std::ranges::count(comm.all_gather(here), here));
  std::size_t const all = std::max(1U, std::thread::hardware_concurrency());
  cpu_set_t allowed;
  std::size_t const own = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0
                              ? static_cast<std::size_t>(CPU_COUNT(&allowed))
                              : all;
  // A rank that is bound to cores of its own shares no others.
  return std::clamp<std::size_t>(own < all ? own : own / ranks_here, 1, most_threads);
}

}  // namespace reshard
