#pragma once

#include <string>

#include "core/base/tables/integers.hpp"
#include "core/containers/torch/pickle/pickle.hpp"

namespace reshard {

/// The list of parameter groups of one optimizer's settings: under "optimizer" for mixed precision,
/// else directly. `no_node` if there is none.
pickle::NodeId groups_of(pickle::Document const& document, pickle::NodeId settings);

/// Whether the common state of torch_dist has a chain of optimizers: under "optimizer" {0: …, 1: …}
/// instead of one dict of settings. Megatron-Core has two if expert parallelism makes experts
/// synchronise separately.
bool has_several_optimizers(pickle::Document const& common);

/// Whether the optimizers are of several kinds instead: Muon for matrices, Adam for the rest, and
/// both again for experts; each weight belongs to one of them.
bool is_chain_of_kinds(pickle::Document const& common);

/// The settings of one optimizer in the common state: those of the only one, or of the chain's.
/// `no_node` if there is none.
pickle::NodeId settings_of_chain(pickle::Document const& common, Index chain);

/// Adds to the parameter groups of `settings` those that only `others` have: ranks have no group
/// without parameters. A group without a step gets that of the others. Steps that differ are an
/// Error of kind source that begins with `place`.
void add_lacking_groups(pickle::Document& document, pickle::NodeId settings, pickle::NodeId others,
                        std::string const& place);

/// Converts between the two forms in `document`, whose dict `root` is a copy of the common state
/// `common`. Splitting gives the experts the settings of all others, marked as those of experts, in
/// the groups of expert weights (without `expert_biases` none is exempt from weight decay); joining
/// keeps the others' settings, and those groups of the experts that the others lack. Chains of
/// several kinds are unchanged; if they cannot be, that is an Error of kind source.
void split_optimizers(pickle::Document& document, pickle::NodeId root,
                      pickle::Document const& common, bool several, bool expert_biases);

}  // namespace reshard
