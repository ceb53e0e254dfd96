#pragma once

#include <string>
#include <string_view>

#include "core/formats/checkpoint.hpp"
#include "core/formats/stored_view.hpp"

namespace reshard::dcp {

/// The keys of any state dict, sorted by content. `prefix` is cut off the weights' keys.
StoredView sorted_keys(Checkpoint const& checkpoint, std::string const& prefix);

/// The state of a checkpoint whose keys are named as torch's distributed state dicts name them
/// (named_states.hpp), and the objects that are not part of it. `view` is that of
/// sorted_keys().
StateInventory named_inventory(Checkpoint const& checkpoint, StoredView const& view);

/// optimizer_rank_3.pt and rng_state_rank_00003.pt: state of one rank next to a checkpoint of
/// Megatron Lite.
bool is_rank_optimizer(std::string_view file);
bool is_rank_rng(std::string_view file);

}  // namespace reshard::dcp
