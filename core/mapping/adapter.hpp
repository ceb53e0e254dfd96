#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/layout/adapter_layout.hpp"
#include "core/mapping/model.hpp"

namespace reshard {

/// The axes of a linear weight: of what it maps to and from.
struct LinearAxes {
  std::vector<std::string> out;
  std::vector<std::string> in;
};

using LinearWeights = std::map<std::string, LinearAxes, std::less<>>;

/// The linear weights of a map by name: those that an entry stores as a matrix, out x in, under a
/// name with "weight". `kept`: also those that are carried without being understood.
LinearWeights linear_weights(MapFile const& map, bool kept = false);

/// Which dimensions of a weight's layout are out and in, where each of them holds axes of one kind
/// alone; nothing for a weight that is no such product. Axes of other dimensions are `further`.
struct LinearRoles {
  LinearDims dims;
  std::vector<std::string> further;
};
std::optional<LinearRoles> linear_roles(LayoutExpr const& weight, LinearAxes const& axes);

/// The logical tensor that a matrix is: "attn.q.lora_a.r8".
std::string adapter_tensor(std::string_view weight, AdapterMatrix matrix, Index rank);
/// The word for it in Side::part(): "lora_a.r8".
std::string adapter_part(AdapterMatrix matrix, Index rank);

/// The stored name of a matrix beside that of its weight; "" where the weight's name has no
/// "weight" as its last word (digits, or a field in braces, may follow it). `part` is the word of
/// MapAdapter::parts, or "". Also for names with fields.
///
///   bridge:  mlp.experts.linear_fc1.weight3  ->  mlp.experts.linear_fc1.adapter.linear_in.weight
///   peft:    model.layers.0.mlp.up_proj.weight
///            ->  base_model.model.model.layers.0.mlp.up_proj.lora_A.weight
std::string adapter_name(MapAdapter const& form, std::string_view weight, AdapterMatrix matrix,
                         std::string_view part);
/// The same of a parameter without "weight" that has `wrapped` wrappers of other parameters of its
/// module around its own:
///
///   model.layers.0.mlp.experts.gate_up_proj, 1
///            ->  base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight
std::string packed_adapter_name(MapAdapter const& form, std::string_view parameter,
                                AdapterMatrix matrix, std::size_t wrapped);
/// Whether one of these ends of names, those of peft's target_parameters
/// ("mlp.experts.gate_up_proj"), means a parameter.
bool means_parameter(std::vector<std::string> const& ends, std::string_view parameter);
/// Whether one of them means a parameter of the module of this one, which has no "weight"; also for
/// patterns.
bool means_module_of(std::vector<std::string> const& ends, std::string_view parameter);
/// The module of a stored name, with the dot or the field behind it, and the last word.
std::pair<std::string_view, std::string_view> module_and_word(std::string_view name);

/// The word that a form has for a weight; "" for none.
std::string_view part_word(MapAdapter const& form, std::string_view weight);
/// Whether a weight may have an adapter in this form.
bool may_have_adapter(MapAdapter const& form, std::string_view weight);

/// The form of this name; an unknown one is an internal Error.
MapAdapter const& adapter_form(std::vector<MapAdapter> const& forms, std::string_view name);

/// The weight of a matrix among the tensors of a model with adapters; nothing for other tensors.
struct AdapterTensor {
  TensorId weight{};
  AdapterMatrix matrix = AdapterMatrix::a;
  Index rank = 0;
};
std::optional<AdapterTensor> adapter_of(Model const& model, TensorId tensor);

/// Whether the model that adapters were found for has a weight, in any layer.
bool in_base_model(Model const& model, std::string_view weight);

/// The axes of a weight that has matrices of this rank in the model; nothing where it has none.
std::optional<LinearAxes> adapted_axes(Model const& model, std::string_view weight, Index rank);

}  // namespace reshard
