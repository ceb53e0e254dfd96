#pragma once

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// An Error of kind usage where the target has no place for a matrix of an adapter: an adapter of a
/// part of a fused weight (q and v, and not k) in a form with one adapter for all of it, or a
/// weight that the form has no adapter of.
void check_adapter_places(Model const& model, MapFile const& core, Catalog const& target);

}  // namespace reshard
