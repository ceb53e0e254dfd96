#pragma once

#include <string_view>

#include "core/formats/checkpoint.hpp"
#include "core/formats/stored_view.hpp"
#include "core/mapping/side.hpp"

namespace reshard::megatron {

/// What the names in mp_rank_* files say. Always states spec and form.
NameTraits traits_of_shares(Checkpoint const& checkpoint);

/// Adds what one key of torch_dist or fsdp_dtensor says, without its prefix. Pre: the root is
/// known.
void note_traits(NameTraits& traits, std::string_view key, StoredTensor const& tensor);

/// Says to a side how its language model and the parts beside it are called.
void add_names(SideOptions& options, TrainerNames const& names);

/// Whether two sides call everything alike; how layers of a tower lie does not count.
bool same_names(TrainerNames const& a, TrainerNames const& b);

}  // namespace reshard::megatron
