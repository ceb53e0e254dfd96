#pragma once

#include <cstddef>
#include <vector>

#include "core/containers/torch/pickle.hpp"

namespace reshard::pickle {

/// The nodes a node refers to, by position; some positions hold no_node.
std::size_t child_count(Node const& node);
NodeId child(Node const& node, std::size_t position);

/// Which nodes can be reached from `root`. Each is visited once, however often it is shared, and
/// without recursion.
std::vector<bool> reachable(Document const& document, NodeId root);

/// The nodes from which a marked one can be reached, the marked ones included.
std::vector<bool> leading_to(Document const& document, std::vector<bool> marked);

/// Whether a path of more than `deepest` nodes leads down from the root. Steps back to an ancestor
/// (cycles) do not count.
bool deeper_than(Document const& document, std::size_t deepest);

}  // namespace reshard::pickle
