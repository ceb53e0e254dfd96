#pragma once

#include <span>

#include "core/plan/cells/round.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// Adds to a round the digests of bytes that it reads: `digests` are those of Plan::digests_of(),
/// their first_dim counts in `dims`, `tensor_bytes` is by tensor. Pre: the round's reads contain
/// every byte of them.
void place_digests(RoundWork& work, std::span<DigestRegion const> digests,
                   std::span<ByteDim const> dims, std::span<std::uint64_t const> tensor_bytes);

}  // namespace reshard
