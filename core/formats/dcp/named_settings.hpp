#pragma once

#include <memory>
#include <string>

#include "core/formats/checkpoint.hpp"
#include "core/formats/headers/header_exchange.hpp"
#include "core/formats/headers/stamped_files.hpp"
#include "core/formats/run/torch_optimizer.hpp"

namespace reshard::dcp {

/// The optimizer of a checkpoint with state under names of parameters (named_states.hpp): steps,
/// and settings as any of
///   PLACE.param_groups          one object, a list of dicts
///   PLACE.param_groups.0.lr     nested state dicts; PLACE.param_groups.0.params has the names
///   PLACE.param_groups.NAME.lr  flatten_optimizer_state_dict
/// nullptr without state. Each rank reads a share of the values. Unusable settings are
/// TorchOptimizer::fault; damage is an Error of kind source. Collective.
std::shared_ptr<TorchOptimizer const> read_named_settings(Checkpoint const& checkpoint,
                                                          std::string const& prefix,
                                                          StampedFiles& files,
                                                          HeaderExchange const& exchange);

}  // namespace reshard::dcp
