#include "core/containers/torch/pickle/pickle_builder.hpp"

#include <array>

#include "core/base/files/file.hpp"

namespace reshard::pickle {
namespace {

/// With its share of the allocator's overhead for a block of nodes.
constexpr std::size_t node_bytes = sizeof(Node) + 8;

}  // namespace

NodeId Builder::add(Node node) {
  if (document.nodes.size() >= limits_.largest_nodes)
    refuse("more than {} values. No checkpoint has that many: the file is damaged.",
           limits_.largest_nodes);
  charge(node_bytes + node.text.size() + node.items.size() * sizeof(NodeId));
  if (trace != nullptr) trace->offsets.push_back(offset);
  document.nodes.push_back(std::move(node));
  return static_cast<NodeId>(document.nodes.size() - 1);
}

void Builder::charge(std::size_t bytes) {
  used_bytes_ += bytes;
  if (used_bytes_ > limits_.largest_bytes)
    refuse(
        "its values need more than {} of memory. No checkpoint's structure is that large: the file is damaged.",
        human_bytes(limits_.largest_bytes));
}

std::string_view kind_name(Kind kind) {
  constexpr std::array<std::string_view, 16> names = {
      "None", "bool", "int", "int",       "float",  "str",    "bytes",   "tuple",
      "list", "dict", "set", "frozenset", "global", "object", "storage", "tensor"};
  static_assert(names.size() == static_cast<std::size_t>(Kind::tensor) + 1);
  return names[static_cast<std::size_t>(kind)];
}

}  // namespace reshard::pickle
