#pragma once

#include <cstddef>
#include <functional>

#include "core/transport/comm.hpp"

namespace reshard {

/// Calls `work` with those numbers below `count` that are this rank's when the ranks take them in
/// turn. Not collective.
inline void for_each_in_turn(Comm const& comm, std::size_t count,
                             std::function<void(std::size_t)> const& work) {
  for (auto i = static_cast<std::size_t>(comm.rank()); i < count;
       i += static_cast<std::size_t>(comm.size()))
    work(i);
}

}  // namespace reshard
