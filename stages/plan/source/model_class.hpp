#pragma once

#include <string_view>

#include "core/formats/source_model.hpp"
#include "core/formats/target.hpp"

namespace reshard {

/// Reads a hybrid model of pairs (core/formats/megatron/paired_layers.hpp) as the GPTModel that it
/// is, where the job's target or the family of the model is one: args and traits change. Pre: the
/// maps are chosen. A pattern of other layers is an Error of kind usage when the job asks for a
/// GPTModel, and stays as it is otherwise.
void settle_model_class(TargetRequest const& request, std::string_view place, SourceModel& result);

}  // namespace reshard
