#pragma once

#include "core/mapping/model.hpp"

namespace reshard {

/// Leaves of a model the layers for multi-token prediction, under their numbers, and the weights
/// without layers that have rows of tokens: what an engine reads of a draft model.
void limit_to_draft(Model& model);

}  // namespace reshard
