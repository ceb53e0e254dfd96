#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tables/integers.hpp"

namespace reshard {

/// A stored tensor of a model that no map describes. Without a header its shape is unknown.
struct DraftTensor {
  std::string name;
  std::optional<std::vector<Index>> shape;
};

/// Stored tensors whose names differ in numbers only. `text` has `#` where a complete word is a
/// number: "model.layers.#.mlp.up_proj.weight".
struct NameGroup {
  std::string text;
  std::uint64_t count = 0;
  std::optional<std::vector<Index>> shape;  ///< nothing: not known, or not the same for all
};

/// The name with `#` for each word between dots that is a number.
std::string numbers_hidden(std::string_view name);

/// Groups in the order of their first names.
std::vector<NameGroup> group_names(std::span<DraftTensor const> tensors);

/// How many layers the names count: the largest first number among them, plus one; 0 for none.
Index counted_layers(std::span<DraftTensor const> tensors);

}  // namespace reshard
