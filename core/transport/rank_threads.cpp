#include "core/transport/rank_threads.hpp"

#include <algorithm>
#include <string>
#include <thread>

#include <sched.h>

#include "core/transport/nccl/host_identity.hpp"

namespace reshard {
namespace {

/// More threads do not make a stage faster, even for a single rank on a node.
constexpr std::size_t most_threads = 8;

}  // namespace

std::size_t rank_threads(Comm const& comm) {
  cpu_set_t allowed;
  bool const known = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  std::size_t const cores = known ? static_cast<std::size_t>(CPU_COUNT(&allowed))
                                  : std::max(1U, std::thread::hardware_concurrency());
  // Ranks of a host that may use the same cores share them.
  std::string mine = host_name();
  if (known) mine.append(reinterpret_cast<char const*>(&allowed), sizeof allowed);
  auto const sharing = static_cast<std::size_t>(std::ranges::count(comm.all_gather(mine), mine));
  return std::clamp<std::size_t>(cores / sharing, 1, most_threads);
}

}  // namespace reshard
