#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "core/formats/targets/target_job.hpp"

namespace reshard {

/// By number in StoredTable::tensors: the names of optimizer state in a target that needs master
/// weights (TargetTraits::needs_masters), whatever source.prefix is. Empty for other targets, and
/// for DeepSpeed's checkpoints, whose names these are.
std::map<std::size_t, std::string> named_states_of(Checkpoint const& source,
                                                   PlanRequest const& request);

/// For such a target, in a job that keeps names: gives optimizer state the names that DeepSpeed's
/// has, "optimizer.state.NAME.exp_avg", and adds masters, of weights that are the masters
/// themselves, and of all where the job has no state. Of single numbers only steps stay. Errors of
/// kind source: state that belongs to no weight, to one without a step, or to one that is not F32
/// and has no master.
void settle_named_states(Checkpoint const& source, PlanRequest const& request,
                         std::vector<NamedTensor>& tensors);

}  // namespace reshard
