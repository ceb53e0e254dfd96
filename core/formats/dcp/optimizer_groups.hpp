#pragma once

#include "core/containers/torch/pickle.hpp"

namespace reshard {

/// Megatron-Core has one optimizer, or a chain of two where expert parallelism makes experts
/// synchronise apart. The common state of torch_dist then holds one dict of settings under
/// "optimizer", or {0: …, 1: …}.
bool has_several_optimizers(pickle::Document const& common);

/// Turns one form into the other in `document`, whose dict `root` is a copy of the common state
/// `common`. Splitting gives the experts the settings of all others, marked as theirs, in the
/// groups that expert weights fall into (without `expert_biases` none is exempt from weight decay);
/// joining keeps the others' settings, and those groups of the experts that the others lack.
void split_optimizers(pickle::Document& document, pickle::NodeId root,
                      pickle::Document const& common, bool several, bool expert_biases);

}  // namespace reshard
