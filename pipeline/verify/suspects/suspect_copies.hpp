#pragma once

#include <cstddef>
#include <vector>

#include "core/transport/comm.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/verify/surveys/suspect_rules.hpp"

namespace reshard {

struct CopyFindings {
  std::vector<Suspect> suspects;
  std::uint64_t replicas = 0;  ///< that were compared, copies by declaration among them
  std::uint64_t masters = 0;   ///< logical tensors of master weights that were compared
};

/// Compares what a checkpoint holds more than once: replicas, tied weights that are stored apart,
/// master weights with what they should round to. Reads these alone, once, and what differs again,
/// to count and to say where. The same on every rank; collective. Errors: source, io.
CopyFindings compare_copies_inside(Checkpoint const& checkpoint, JobPlan const& catalogue,
                                   std::size_t threads, Comm const& comm);

}  // namespace reshard
