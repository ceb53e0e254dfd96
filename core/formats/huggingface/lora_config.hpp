#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/integers.hpp"
#include "core/base/json.hpp"
#include "core/formats/huggingface/folder.hpp"

namespace reshard::huggingface {

/// What peft's adapter_config.json says about a LoRA adapter.
class LoraConfig {
 public:
  /// `place` is for messages. Errors of kind source: another kind of adapter, or one that is more
  /// than scale * B * A beside unchanged weights (DoRA, biases, modules that were trained as a
  /// whole, initialisations that change the base model).
  LoraConfig(Json config, std::string place);

  /// What a module's product is multiplied by: alpha / rank, or alpha / sqrt(rank) of a
  /// rank-stabilised adapter (rsLoRA), computed in F64 and rounded to F32 as PyTorch does. Alpha
  /// may be that of a pattern.
  float scale(std::string_view module, Index rank) const;
  /// The rank that the config states for a module.
  Index rank(std::string_view module) const;
  /// Whether all modules have the same alpha.
  bool same_alpha() const;
  /// Whether the adapted weights are stored [in, out] (GPT-2's Conv1D).
  bool transposed() const { return transposed_; }
  /// Parameters that are adapted as such, not as the weight of a module: the last words of their
  /// names, "mlp.experts.gate_up_proj".
  std::vector<std::string> const& parameters() const { return parameters_; }

 private:
  std::optional<Json> pattern(std::string_view table, std::string_view module) const;

  Json config_;
  std::string place_;
  bool transposed_ = false;
  bool by_root_ = false;
  std::vector<std::string> parameters_;
};

}  // namespace reshard::huggingface
