#pragma once

#include <string_view>

#include "core/formats/checkpoint.hpp"
#include "core/formats/stored_view.hpp"

namespace reshard::megatron {

/// What the names in mp_rank_* files say. Always states spec and form.
NameTraits traits_of_shares(Checkpoint const& checkpoint);

/// Adds what one key of torch_dist or fsdp_dtensor says, without its prefix.
void note_traits(NameTraits& traits, std::string_view name, StoredTensor const& tensor);

}  // namespace reshard::megatron
