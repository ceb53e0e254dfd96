#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tables/integers.hpp"
#include "core/base/text/json.hpp"
#include "core/formats/huggingface/folder.hpp"

namespace reshard::huggingface {

/// The use that a job makes of an adapter.
enum class LoraUse {
  merge,  ///< its product is added to weights of the base model
  carry   ///< it is converted, and adapter_config.json with it, byte for byte
};

/// A LoRA adapter's settings, from peft's adapter_config.json.
class LoraConfig {
 public:
  /// `place`: the file, for messages. Errors of kind source: another kind of adapter, or one that
  /// is more than scale * B * A beside unchanged weights (DoRA, biases, modules that were trained
  /// as a whole). Initialisations that change the base model are such an Error where the adapter is
  /// merged, else a warning: the adapter is carried exactly, and so is the member that says it.
  LoraConfig(Json config, std::string place, LoraUse use);

  std::vector<std::string> const& warnings() const { return warnings_; }

  /// An Error of kind source where a module whose tensors have this rank has another one in the
  /// config, or a scale that is no finite number.
  void check(std::string_view module, Index rank) const;

  /// Factor of a module's product: alpha / rank, or alpha / sqrt(rank) of a rank-stabilised adapter
  /// (rsLoRA), computed in F64 and rounded to F32 as PyTorch does. Alpha may be that of a pattern.
  /// An Error of kind source where it is no finite F32.
  float scale(std::string_view module, Index rank) const;
  /// The rank that the config states for a module.
  Index rank(std::string_view module) const;
  /// Whether all modules have the same alpha.
  bool same_alpha() const;
  /// Whether it says the same of all modules: then their names do not matter.
  bool uniform() const;
  /// Whether it states a rank; that of an adapter whose alpha a job gave does not.
  bool states_rank() const { return config_.find("r") != nullptr; }
  std::string const& place() const { return place_; }
  /// Whether each row of a merged weight gets a length that is stored beside the factors (DoRA).
  bool normalised() const { return normalised_; }
  /// Whether the adapted weights are stored [in, out] (GPT-2's Conv1D).
  bool transposed() const { return transposed_; }
  /// Parameters that are adapted as such, not as the weight of a module: the last words of their
  /// names, "mlp.experts.gate_up_proj".
  std::vector<std::string> const& parameters() const { return parameters_; }

 private:
  void check_types() const;
  void judge_start(std::string const& start, LoraUse use);
  std::optional<Json> pattern(std::string_view table, std::string_view module) const;

  Json config_;
  std::string place_;
  bool transposed_ = false;
  bool by_root_ = false;
  bool normalised_ = false;
  std::vector<std::string> parameters_;
  std::vector<std::string> warnings_;
};

/// Reads a folder's adapter_config.json; nothing where there is none.
std::optional<LoraConfig> lora_config(Folder const& folder, LoraUse use);

/// The alpha of an adapter without adapter_config.json: that of the job (model.lora_alpha), else
/// the one that settings of its run record; null: none. An Error of kind usage where neither is
/// there, which `needed` explains, and for what is no finite number.
Json stated_alpha(std::string const& text, Json const& recorded, std::string const& needed);

}  // namespace reshard::huggingface
