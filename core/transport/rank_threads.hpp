#pragma once

#include <cstddef>

#include "core/transport/comm.hpp"

namespace reshard {

/// The number of threads of each kind on this rank: its share of the cores that it is bound to; at
/// least 1, at most 8. Collective; differs between ranks.
std::size_t rank_threads(Comm const& comm);

}  // namespace reshard
