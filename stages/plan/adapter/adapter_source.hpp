#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/formats/format.hpp"
#include "core/formats/huggingface/config/lora_config.hpp"
#include "core/formats/source_model.hpp"
#include "core/mapping/adapter_finder.hpp"
#include "stages/plan/source/catalog/stored_shares.hpp"

namespace reshard {

/// Whether a stored name is that of a tensor of an adapter, as peft, Megatron-Bridge and
/// mcore-bridge call them.
bool is_adapter(std::string_view name);

/// Whether every stored tensor is part of an adapter. Errors of kind source: kinds of adapters that
/// no map describes (DoRA, embeddings), tensors beside an adapter of peft (modules_to_save, copies
/// of the base's weights), weights that an adapter is wrapped around.
bool holds_adapter(Checkpoint const& source, StoredView const& view);

/// Which of the forms of a core map the stored names have, and whether adapters of q, k and v are
/// apart; `packed` is what target_parameters of adapter_config.json has. An Error of kind source
/// for names that no form has.
AdapterNames adapter_names(Checkpoint const& source, StoredView const& view,
                           std::vector<MapAdapter> const& forms, std::vector<std::string> packed);

/// Whether an adapter of peft has matrices of a weight of the family's; `name` may be a pattern.
/// With `base`, which answers for the stored names of a base model, also where the adapter has
/// nothing in the weight's module: then it is stored as the base stores it. Below the names of a
/// part of the model that the adapter has, a norm or an embedding of that part is there
/// ("model.language_model.norm.weight"), whatever the base calls it.
bool has_adapter_of(StoredView const& view, AdapterNames const& names, MapAdapter const& form,
                    std::string_view name, std::function<bool(std::string_view)> const& base = {});

/// The weights that adapters in the names of a family, or in Megatron's, may have.
LinearWeights adaptable_weights(MapChoice const& maps, bool family_names);

/// The model whose only tensors are the adapters of the source. `side` names its weights; `config`
/// is what adapter_config.json says of names of this kind, or nullptr. Errors of kind source: a
/// stored tensor that belongs to no weight, a matrix without the other, ranks that disagree.
void add_adapters(Model& model, Side const& side, LinearWeights const& linear,
                  AdapterNames const& names, StoredShares const& shares, Checkpoint const& source,
                  huggingface::LoraConfig const* config);

/// The folder of the base model that adapter_config.json names, where it is on this machine; "".
std::filesystem::path base_of_adapter(Json const& adapter_config);

}  // namespace reshard
