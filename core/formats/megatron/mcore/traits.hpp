#pragma once

#include <string_view>

#include "core/formats/checkpoint.hpp"
#include "core/formats/stored_view.hpp"
#include "core/mapping/sides/side.hpp"

namespace reshard::megatron {

/// The traits shown by the names in mp_rank_* files. Always with spec and form.
NameTraits traits_of_shares(Checkpoint const& checkpoint);

/// Adds the traits shown by one key of torch_dist or fsdp_dtensor, without its prefix. Pre: the
/// root is known.
void note_traits(NameTraits& traits, std::string_view key, StoredTensor const& tensor);

/// Sets the names of a side's language model and its other parts.
void add_names(SideOptions& options, TrainerNames const& names);

/// Whether two sides have the same names; the form of a tower's layers does not count.
bool same_names(TrainerNames const& a, TrainerNames const& b);

}  // namespace reshard::megatron
