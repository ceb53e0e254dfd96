#pragma once

#include <cstddef>

#include "core/transport/comm.hpp"

namespace reshard {

/// How many threads this rank may have of each kind: its share of the cores that it is bound to; at
/// least 1, at most 8. Collective; not the same on every rank.
std::size_t rank_threads(Comm const& comm);

}  // namespace reshard
