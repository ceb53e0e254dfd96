#pragma once

#include <cstddef>

#include "core/formats/checkpoint.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/journal/job_identity.hpp"
#include "pipeline/publication/incremental/previous_target.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// The job behind a target, as publication needs it. Borrows everything.
struct TargetTask {
  JobSpec const& spec;
  Checkpoint const& source;
  JobPlan const& plan;  ///< without what earlier runs did, once that is known
  JobIdentity const& identity;
  PreviousTarget const& previous;
  Comm const& comm;
  std::size_t threads = 1;  ///< of this rank
};

}  // namespace reshard
