#pragma once

#include <optional>

#include "core/formats/source_model.hpp"
#include "core/formats/targets/target.hpp"

namespace reshard {

/// The names that target.map gives the tensors of `model` in a target; nothing without it. The map
/// is one of names alone, or the family's own. `request` has its pipeline's layers. Errors of kind
/// usage: no such map, one of another family, a layout that its names do not depend on.
std::optional<TargetNames> target_names(SourceModel const& read, Model const& model,
                                        PlanRequest const& request);

}  // namespace reshard
