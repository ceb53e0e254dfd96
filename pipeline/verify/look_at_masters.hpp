#pragma once

#include "stages/plan/job_plan.hpp"
#include "stages/verify/master_check.hpp"

namespace reshard {

/// Reads the master weights and the weights of one tensor of a checkpoint again, to say where they
/// differ.
MasterFindings look_at_masters(Checkpoint const& checkpoint, Model const& model,
                               Catalog const& catalog, StateCheck const& check);

}  // namespace reshard
