#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/formats/headers/header_exchange.hpp"
#include "core/formats/headers/stamped_files.hpp"

namespace reshard::dcp {

// dp_zero_gather_scatter, the form of Megatron-Core up to 0.14: the flat buffers of each group of
// ranks are one object, a torch file like distrib_optim.pt. Source:
// megatron/core/optimizer/distrib_optimizer.py (sharded_param_state_dp_zero).

/// Whether optimizer state is in such objects.
bool has_gathered_states(Checkpoint const& checkpoint);

/// Adds the vectors inside those objects to the table of tensors, under keys that
/// parse_bucket_key() knows. Each rank parses a share of them. Damaged objects are Errors of kind
/// source. Collective.
void add_gathered_states(Checkpoint& checkpoint, StampedFiles& files,
                         HeaderExchange const& exchange);

}  // namespace reshard::dcp
