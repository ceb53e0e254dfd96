#pragma once

#include <string_view>

#include "core/formats/source_model.hpp"
#include "core/formats/targets/target.hpp"

namespace reshard {

/// Reads a hybrid model of pairs (core/formats/megatron/mcore/paired_layers.hpp) as the GPTModel
/// that it is, where the job's target or the family of the model is one: args and traits change.
/// Pre: the maps are chosen. A pattern of other layers is an Error of kind usage when the job asks
/// for a GPTModel, and stays as it is otherwise.
void settle_model_class(PlanRequest const& request, std::string_view place, SourceModel& result);

/// Whether a family's own layers are those of a hybrid model.
bool is_hybrid(MapFile const& family);

/// The args of a hybrid model of pairs as those of a GPTModel; null for all others.
Json gpt_args(Json const& args);

}  // namespace reshard
