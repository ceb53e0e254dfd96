#pragma once

#include <string>
#include <vector>

#include "core/formats/format.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/plan/source/map_choice.hpp"

namespace reshard {

/// Deals with the stored tensors of a source that the family's map lists under `keep`: parts of a
/// model that Megatron's map has no axes for (a vision tower). By request they become logical
/// tensors of their own, with the same stored name on every side, beside the embedding in
/// Megatron's files; or they are left unread; or they are refused (Error of kind usage). Call
/// before the model is made: it changes the maps.
void settle_unmapped(MapChoice& maps, Checkpoint const& source, StoredView const& view,
                     TargetRequest const& request, std::vector<std::string>& warnings);

/// Adds what `from` carries by settle_unmapped() to another map of the same job.
void add_kept(MapFile const& from, MapFile& to);

/// Deals with the weights of a DCP source whose keys do not begin with source.prefix: they are
/// counted and named in a warning. In Megatron's formats, or where the family's `keep` fits one,
/// they are parts of the same model: an Error of kind usage, unless they are left out by request.
void settle_unread(MapChoice const& maps, StoredView const& view, bool megatron,
                   TargetRequest const& request, std::vector<std::string>& warnings);

}  // namespace reshard
