#pragma once

#include <string>
#include <string_view>

#include "core/formats/format.hpp"
#include "core/formats/source_model.hpp"
#include "core/mapping/adapter_finder.hpp"
#include "stages/plan/source/stored_shares.hpp"

namespace reshard {

/// Whether a stored name is that of a tensor of an adapter, as peft, Megatron-Bridge and
/// mcore-bridge call them.
bool is_adapter(std::string_view name);

/// Whether every stored tensor is part of an adapter. Errors of kind source: kinds of adapters that
/// no map describes (DoRA, embeddings), tensors beside an adapter of peft (modules_to_save),
/// weights that an adapter is wrapped around.
bool holds_adapter(Checkpoint const& source, StoredView const& view);

/// An Error of kind source where adapter_config.json asks for more than the two matrices: DoRA,
/// biases, whole modules. `place` is for messages.
void check_adapter_config(Json const& config, std::string const& place);

/// Which of the forms of a core map the stored names have, and whether adapters of q, k and v are
/// apart. An Error of kind source for none, and for both at once.
AdapterNames adapter_names(Checkpoint const& source, StoredView const& view,
                           std::vector<MapAdapter> const& forms, Json const& adapter_config);

/// Whether an adapter of peft has matrices of a weight of the family's; `name` may be a pattern.
bool has_adapter_of(StoredView const& view, AdapterNames const& names, MapAdapter const& form,
                    std::string_view name);

/// The model whose only tensors are the adapters of the source. `side` names its weights.
void add_adapters(Model& model, Side const& side, MapFile const& core, AdapterNames const& names,
                  StoredShares const& shares, Checkpoint const& source);

/// The folder of the base model that adapter_config.json names, where it is on this machine; "".
std::filesystem::path base_of_adapter(Json const& adapter_config);

}  // namespace reshard
