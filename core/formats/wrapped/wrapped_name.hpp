#pragma once

#include <string>
#include <string_view>

namespace reshard {

// A state dict of a model that peft has wrapped (LoRA) has the base model and the adapter under one
// roof. Names: peft/tuners/lora/layer.py, peft/utils/other.py (ModulesToSaveWrapper,
// TrainableTokensWrapper); what save_pretrained makes of them: peft/utils/save_and_load.py.

/// The meaning of a stored name.
struct WrappedName {
  enum class Kind {
    plain,      ///< a tensor of the base model that peft has not touched
    base,       ///< of the base model, inside of a wrapper: "q_proj.base_layer.weight"
    original,   ///< of a module that was trained as a whole, before that: "original_module"
    trained,    ///< the same after it: "modules_to_save.default"
    matrix,     ///< A or B of a linear layer
    magnitude,  ///< DoRA's: "lora_magnitude_vector.default.weight"
    further,    ///< of the adapter, and none of these: embeddings, biases, rows of tokens
    unknown     ///< "lora_" and what this program does not know
  };
  Kind kind = Kind::plain;
  std::string before;   ///< what stands before "base_model.model."
  std::string base;     ///< plain, base, original, trained: the name in the base model
  std::string peft;     ///< of the adapter: the name in adapter_model.safetensors
  std::string adapter;  ///< "default"
  std::string wrapped;  ///< base, and what is of the adapter: the module with the wrapper
  bool rooted = false;  ///< it has "base_model.model."
};
WrappedName parse_wrapped(std::string_view name);

}  // namespace reshard
