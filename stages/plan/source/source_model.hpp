#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/formats/source_model.hpp"
#include "core/formats/targets/target.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "stages/plan/source/catalog/source_catalog.hpp"

namespace reshard {

/// Is given the source's side while it can be asked for names, and what was read through it. Not
/// called for sources of logical tensors.
using LookAtSide = std::function<void(SourceModel const&, Side const&)>;

/// Reads facts, chooses the maps, makes the model and the source's catalogue. `carry_states`: the
/// target can hold optimizer state.
SourceModel read_source_model(Checkpoint const& source, PlanRequest const& request,
                              bool carry_states, LookAtSide const& look = {});

}  // namespace reshard
