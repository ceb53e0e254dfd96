#pragma once

#include <cstdint>
#include <span>

#include "pipeline/run/planned_job.hpp"

namespace reshard {

/// How much optimizer state was compared with its weights.
struct StateProof {
  std::uint64_t masters = 0;  ///< logical tensors of master weights that round to their weights
  std::uint64_t moments =
      0;  ///< logical tensors of second moments that are finite and not negative
};

/// Compares the digests of rounded master weights with those of their weights. `digests` are of
/// all ranks, by DigestId; `found` is what was looked at. When they differ, rank 0 reads the first
/// tensor again to say where. Errors: source. Collective.
StateProof prove_states(JobSpec const& spec, PlannedJob const& job,
                        std::span<std::uint64_t const> digests, Comm const& comm);

}  // namespace reshard
