#pragma once

#include <cstdint>
#include <span>

#include "core/transport/comm.hpp"

namespace reshard {

/// Replaces each element by its sum over the ranks, modulo 2^64. Collective.
void sum_all(Comm const& comm, std::span<std::uint64_t> values);

}  // namespace reshard
