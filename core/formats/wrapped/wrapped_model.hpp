#pragma once

#include <string>

#include "core/formats/checkpoint.hpp"
#include "core/formats/wrapped/wrapped_config.hpp"

namespace reshard {

/// A weight inside of a wrapper, by its stored name; "" where the checkpoint is of no wrapped
/// model. The first of the alphabet.
std::string wrapped_weight(Checkpoint const& source);

/// Leaves in the table of a wrapped model what the job takes, under the names that it has without
/// peft: the base model (merge, drop) or the adapter, as peft's own file names it (only). With
/// `merge` the adapter becomes JoinedCheckpoints::adapter, and modules that were trained as a whole are
/// those of the base model. Nothing changes in a checkpoint of no wrapped model, and with `keep`.
/// Says whether there was something to take. Reads small files, through Sight. Errors: source
/// (names that are not understood, several adapters, what cannot be merged), usage (no
/// adapter_config.json, optimizer state that is kept).
bool take_wrapped(Checkpoint& source, WrappedChoice const& choice);

}  // namespace reshard
