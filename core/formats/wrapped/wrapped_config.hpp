#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>

#include "core/formats/checkpoint.hpp"
#include "core/formats/read_choice.hpp"
#include "core/formats/wrapped/wrapped_name.hpp"

namespace reshard {

/// A job's choice of the parts of a wrapped model.
struct WrappedChoice {
  AdapterUse use = AdapterUse::keep;
  std::string prefix;            ///< source.prefix: others are left alone
  std::filesystem::path config;  ///< adapter_config.json, or the folder that has it; "":
                                 ///< beside the weights
  std::string lora_alpha;        ///< model.lora_alpha
  bool drop_optimizer = false;
};

/// Names by the place of their tensor in the table.
using WrappedNames = std::map<std::size_t, WrappedName>;

/// adapter_config.json of the adapter of a wrapped model.
struct WrappedConfig {
  Json json;                     ///< null: none is known
  std::string text;              ///< its bytes, or what is made
  std::filesystem::path folder;  ///< where it lies
};

/// That of the choice, else beside the weights, in `lora_adapter` (verl) or `huggingface` there, or
/// one folder further up; else one that is made of lora_train_meta.json (verl) or
/// model.lora_alpha, and the tensors. With AdapterUse::drop none is made. Reads small files,
/// through Sight. Errors of kind usage: no file that states a scale, an adapter that is not this
/// one.
WrappedConfig wrapped_config(Checkpoint const& source, WrappedNames const& names,
                             WrappedChoice const& choice);

}  // namespace reshard
