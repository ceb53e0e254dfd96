#pragma once

#include <cstddef>
#include <optional>

#include "core/containers/torch/pickle/pickle.hpp"

namespace reshard::megatron {

/// The number of entries of a dict, OrderedDict or the like, with keys of any type; nullopt for
/// other values. Document::members() returns fewer if keys are not texts or are duplicates.
inline std::optional<std::size_t> mapping_size(pickle::Document const& document,
                                               pickle::NodeId id) {
  pickle::Node const& node = document.at(id);
  if (node.kind == pickle::Kind::dict) return node.items.size() / 2;
  auto const [module, name] = document.class_of(id);
  if (node.kind != pickle::Kind::reduce || module != "collections") return std::nullopt;
  if (name != "OrderedDict" && name != "defaultdict" && name != "Counter") return std::nullopt;
  return node.pairs.size() / 2;
}

}  // namespace reshard::megatron
