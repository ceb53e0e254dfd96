#pragma once

#include <string>
#include <string_view>

#include "core/mapping/model.hpp"

namespace reshard {

/// Why a model has no form in Megatron: the text that its family's map defines as `no_megatron` in
/// [let]. "" where it has a form: no such definition, or null.
std::string no_megatron_reason(Model const& model);

/// An Error of kind usage with that reason. `map_name` names the family's map, `side` the part of
/// the job that asks for Megatron's names: "[target] format" or "[source] path".
void require_megatron_form(Model const& model, std::string_view map_name, std::string_view side);

}  // namespace reshard
