#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/formats/source_model.hpp"

namespace reshard {

/// How a source with Megatron's names is read by the core map: whole tensors with axes in front, or
/// shares of ranks; with its args, the traits of its names and the form of its adapters.
SideOptions core_side_options(Checkpoint const& source, SourceModel const& read);

}  // namespace reshard
