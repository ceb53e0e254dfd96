#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/text/json.hpp"
#include "core/formats/huggingface/options.hpp"

namespace reshard::huggingface {

/// Meaning of target.quant and the keys beside it, together.
struct QuantRecipe {
  MadeQuant form = MadeQuant::none;
  QuantFor library = QuantFor::compressed_tensors;  ///< never automatic
  Index block_rows = 1;
  Index block_columns = 0;    ///< 0: all
  bool power_scales = false;  ///< of fp8-block: E8M0
  bool stacks = false;        ///< experts of a layer in one tensor are quantised, and nothing else
  std::vector<std::string> ignored;

  /// Whether each row must be so many complete blocks.
  bool needs_complete_blocks() const;
  DType code_dtype() const;
  /// The last parts of names, behind that of the module: "weight", "weight_scale_inv".
  std::string_view codes_name() const;
  std::string_view scales_name() const;
  /// "" where no second scale is stored.
  std::string_view second_name() const;
  /// Whether codes are packed in words of 32 bits, and rows and columns are stored as well
  /// ("weight_shape").
  bool is_packed() const { return form == MadeQuant::int4_group || form == MadeQuant::int8_group; }
};

/// The recipe for a model of a type (config.json's model_type; "" where none is known). Errors of
/// kind usage: keys that do not fit each other or the model.
QuantRecipe recipe_of(TargetOptions const& options, std::string_view model_type);

/// Whether a module ("model.layers.0.mlp.gate") keeps its weight: output layers and embeddings,
/// routers, what is not of the language model, small projections that engines do not read
/// quantised, and those that match a pattern of `ignored`.
bool keeps_weight(std::string_view module, std::vector<std::string> const& ignored);

/// Whether it is of multi-token prediction; layers from `layers` on are (0: their number is not
/// known).
bool is_of_prediction(std::string_view module, Index layers);

/// Names of modules whose weights share a second scale where one parent has all of them, because
/// engines join them.
std::vector<std::vector<std::string_view>> const& joined_modules();

/// Whether it is an embedding, which no list of linear layers has.
bool is_embedding(std::string_view module);

/// quantization_config of config.json, as the library writes it. `left`: linear layers that keep
/// their weights.
Json quantization_config(QuantRecipe const& recipe, std::vector<std::string> const& left);

/// hf_quant_config.json, which ModelOpt writes beside it; null for other libraries.
Json modelopt_config(QuantRecipe const& recipe, std::vector<std::string> const& left);

}  // namespace reshard::huggingface
