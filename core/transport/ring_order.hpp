#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/transport/transport.hpp"

namespace reshard {

enum class RingDirection { up, down };

/// The indices of the messages in the order in which rank `me` of `ranks` should post them: up
/// begins with those of rank me + 1, then continues around the ring, down begins with me - 1. If
/// all ranks began with rank 0, all would queue up there. Messages of one peer keep their order.
std::vector<std::size_t> ring_order(std::span<FlatMessage const> messages, int me, int ranks,
                                    RingDirection direction);

}  // namespace reshard
