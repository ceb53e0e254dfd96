#pragma once

#include <span>

#include "stages/plan/source/catalog/stored_shares.hpp"

namespace reshard {

/// Whether a stored tensor could be part of a quantised weight, by the names alone.
bool may_be_quantised(Checkpoint const& source, StoredView const& view, MapFile const& map);

/// Adds the parts of quantised weights that are there to the model. Errors of kind source:
/// QuantFinder::apply.
void add_quantised(Model& model, Side const& side, StoredShares const& shares,
                   StoredTable const& stored);

/// Refuses quantised weights for a target of logical tensors. Where the source has names of a
/// family, a job can keep them (Error::is_of_unknown_form()).
void require_logical_form(Model const& model);

}  // namespace reshard
