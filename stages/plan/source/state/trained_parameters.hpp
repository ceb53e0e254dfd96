#pragma once

#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/source_model.hpp"
#include "core/formats/targets/target.hpp"

namespace reshard {

/// Every parameter in a group of Checkpoint::torch_optimizer has all slots, unless model.frozen
/// names it: an Error of kind source. Warns of what Megatron's groups will not have: a schedule,
/// weight decay of norms and biases. Pre: the source has a torch_optimizer.
void check_trained(Checkpoint const& source, PlanRequest const& request, SourceModel const& read,
                   std::vector<std::string>& warnings);

/// Errors of kind source: a parameter with one of Adam's two moments, or none with any. Warns of
/// parameters with a master weight alone.
void check_moments(Checkpoint const& source, SourceModel const& read,
                   std::vector<std::string>& warnings);

}  // namespace reshard
