#pragma once

#include <functional>

#include "core/formats/checkpoint.hpp"
#include "core/formats/huggingface/config/lora_config.hpp"
#include "core/formats/source_model.hpp"

namespace reshard {

/// A folder of peft as an adapter of a base model that was read: model and catalogue of the
/// adapter's matrices, which may be those of some experts of a layer alone. `has` answers for
/// stored names of the base that the adapter has none like. Errors of kind source: a folder without
/// an adapter, another kind of adapter, a tensor that belongs to no weight of the model, shapes and
/// ranks that disagree.
SourceModel peft_adapter(Checkpoint const& adapter, SourceModel const& base,
                         huggingface::LoraConfig const& config,
                         std::function<bool(std::string_view)> const& has);

}  // namespace reshard
