#pragma once

#include <string>
#include <string_view>

#include "core/formats/checkpoint.hpp"
#include "core/formats/stored_view.hpp"

namespace reshard::dcp {

// The keys of checkpoints of Megatron's programs, sorted by content (docs/formats/torch-dist.md).
// `prefix` "": detected (model.module., module., …).

/// Megatron-Core's distributed checkpointing.
StoredView torch_dist_keys(Checkpoint const& checkpoint, std::string const& prefix);
/// Megatron-FSDP.
StoredView fsdp_dtensor_keys(Checkpoint const& checkpoint, std::string const& prefix);
/// Megatron-LM with torch's FSDP2.
StoredView torch_dcp_keys(Checkpoint const& checkpoint, std::string const& prefix);

/// The prefix of optimizer state in torch_dist: "optimizer.state.exp_avg." for "exp_avg".
std::string state_prefix(std::string_view state);

}  // namespace reshard::dcp
