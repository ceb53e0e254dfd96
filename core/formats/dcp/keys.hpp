#pragma once

#include <string>
#include <string_view>

#include "core/containers/dcp/directory.hpp"
#include "core/formats/checkpoint.hpp"
#include "core/formats/stored_view.hpp"

namespace reshard::dcp {

/// The keys of a checkpoint, sorted by content (docs/formats/torch-dist.md). `prefix` "": detected
/// (model.module., module., …) for Megatron's names, none for others.
StoredView sorted_keys(Checkpoint const& checkpoint, Flavour flavour, std::string const& prefix);

/// The state of a checkpoint whose keys are named as torch's distributed state dicts name them
/// (named_states.hpp), and the objects that are not part of it. `view` is of Flavour::plain.
StateInventory named_inventory(Checkpoint const& checkpoint, StoredView const& view);

/// The prefix of optimizer state in torch_dist: "optimizer.state.exp_avg." for "exp_avg".
std::string state_prefix(std::string_view state);

/// optimizer_rank_3.pt and rng_state_rank_00003.pt: state of one rank next to a checkpoint of
/// Megatron Lite.
bool is_rank_optimizer(std::string_view file);
bool is_rank_rng(std::string_view file);

}  // namespace reshard::dcp
