#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/hash/sha256.hpp"
#include "core/transport/comm.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// Hashes of the row-major bytes of a logical tensor.
struct TensorHashes {
  std::uint64_t crc64 = 0;          ///< its digest
  Sha256Digest sha256{};            ///< of all of it
  std::vector<Sha256Digest> parts;  ///< of each layer and expert, in order; empty where it has one
};

/// Reads every logical tensor once, in order, and hashes it; by number of the tensor, of no
/// bytes for those that do not exist. A tensor is one rank's work. Takes up to `memory_bytes` of a
/// rank. The same on every rank; collective. Errors: source, resources, io.
std::vector<TensorHashes> hash_tensors(Checkpoint const& checkpoint, JobPlan const& catalogue,
                                       std::uint64_t memory_bytes, std::size_t threads,
                                       Comm const& comm);

}  // namespace reshard
