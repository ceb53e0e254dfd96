#include "core/transport/ring_order.hpp"

#include <algorithm>
#include <numeric>

namespace reshard {

std::vector<std::size_t> ring_order(std::span<FlatMessage const> messages, int me, int ranks,
                                    RingDirection direction) {
  std::vector<std::size_t> order(messages.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  auto const distance = [&](std::size_t m) {
    int const steps =
        direction == RingDirection::up ? messages[m].peer - me : me - messages[m].peer;
    return (steps + ranks) % ranks;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return distance(a) < distance(b); });
  return order;
}

}  // namespace reshard
