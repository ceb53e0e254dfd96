#pragma once

#include <cstddef>
#include <vector>

#include "core/containers/torch/pickle/pickle.hpp"

namespace reshard::pickle {

/// The nodes a node refers to, by position; some positions hold no_node.
std::size_t child_count(Node const& node);
NodeId child(Node const& node, std::size_t position);

/// By node: whether it can be reached from `root`. Each is visited once, without recursion.
std::vector<bool> reachable(Document const& document, NodeId root);

/// By node: whether a marked one can be reached from it, the marked ones included.
std::vector<bool> leading_to(Document const& document, std::vector<bool> marked);

/// Whether the root has a path of more than `deepest` nodes. Steps back to an ancestor (cycles) do
/// not count.
bool deeper_than(Document const& document, std::size_t deepest);

}  // namespace reshard::pickle
