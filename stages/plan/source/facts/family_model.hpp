#pragma once

#include <functional>
#include <string_view>

#include "core/formats/format.hpp"
#include "core/formats/source_model.hpp"

namespace reshard {

/// Makes the model that config.json describes by the map of its family. A config may list layers
/// for multi-token prediction that were never trained, or were not saved: the checkpoint decides,
/// and a warning says so. `names`: the map of the stored names where it is not the family's, else
/// nullptr; `has` answers for stored names.
void make_family_model(Checkpoint const& source, PlanRequest const& request, MapFile const* names,
                       std::function<bool(std::string_view)> const& has, SourceModel& read);

/// In a job between Megatron layouts that merges no adapter (PlanRequest::carries_rows), gives
/// the model of a family the vocabulary rows that carried_vocab() counts, and the rule of padding
/// of args: what the same job carries that names no family. Without args, those of config.json are
/// the ones that mean something. Does nothing in other jobs. Errors of kind usage as
/// carried_vocab(), of kind source as check_vocab().
void carry_vocab_rows(Checkpoint const& source, PlanRequest const& request, SourceModel& read);

}  // namespace reshard
