#include <algorithm>
#include <optional>
#include <unordered_map>

#include "core/containers/torch/pickle/pickle.hpp"
#include "core/containers/torch/pickle/pickle_graph.hpp"
#include "core/containers/torch/torch_types.hpp"

namespace reshard::pickle {
namespace {

/// Whether objects of a class have entries as a dict has, also while they are empty.
bool is_mapping_class(std::pair<std::string_view, std::string_view> const& type) {
  return type.first == "collections" &&
         (type.second == "OrderedDict" || type.second == "defaultdict" || type.second == "Counter");
}

/// The list with the keys and values of a node: its own items, its pairs, or the items of the dict
/// that is its state. nullptr if it has none.
std::vector<NodeId> const* entries_of(Document const& document, NodeId id) {
  if (id == no_node) return nullptr;
  Node const& node = document.at(id);
  if (node.kind == Kind::dict) return &node.items;
  if (node.kind != Kind::reduce) return nullptr;
  if (!node.pairs.empty() || is_mapping_class(document.class_of(id))) return &node.pairs;
  if (node.state == no_node || document.at(node.state).kind != Kind::dict) return nullptr;
  return &document.at(node.state).items;
}

std::vector<NodeId>* entries_of(Document& document, NodeId id) {
  return const_cast<std::vector<NodeId>*>(entries_of(static_cast<Document const&>(document), id));
}

bool is_key(Document const& document, NodeId id, std::string_view key) {
  return document.at(id).kind == Kind::string && document.at(id).text == key;
}

/// The position of the key in key, value, key, value, …. The last one counts when a key stands
/// twice, as it would for Python.
std::optional<std::size_t> position_of(Document const& document, std::vector<NodeId> const& entries,
                                       std::string_view key) {
  for (std::size_t at = entries.size(); at >= 2; at -= 2)
    if (is_key(document, entries[at - 2], key)) return at - 2;
  return std::nullopt;
}

}  // namespace

NodeId Document::add(Node node) {
  RESHARD_EXPECT(nodes.size() < no_node);
  nodes.push_back(std::move(node));
  return static_cast<NodeId>(nodes.size() - 1);
}

NodeId Document::add_none() { return add({.kind = Kind::none}); }
NodeId Document::add_bool(bool value) { return add({.kind = Kind::boolean, .boolean = value}); }
NodeId Document::add_int(std::int64_t value) {
  return add({.kind = Kind::integer, .integer = value});
}
NodeId Document::add_real(double value) { return add({.kind = Kind::real, .real = value}); }
NodeId Document::add_string(std::string_view value) {
  return add({.kind = Kind::string, .text = std::string(value)});
}
NodeId Document::add_bytes(std::string_view value) {
  return add({.kind = Kind::bytes, .text = std::string(value)});
}
NodeId Document::add_list(std::vector<NodeId> items) {
  return add({.kind = Kind::list, .items = std::move(items)});
}
NodeId Document::add_tuple(std::vector<NodeId> items) {
  return add({.kind = Kind::tuple, .items = std::move(items)});
}
NodeId Document::add_dict() { return add({.kind = Kind::dict}); }

NodeId Document::add_global(std::string_view module, std::string_view name) {
  return add({.kind = Kind::global, .text = fmt::format("{}\n{}", module, name)});
}

NodeId Document::add_tensor(DType dtype, std::vector<Index> shape) {
  TorchType const* const type = torch_type(dtype);
  if (type == nullptr)
    fail(ErrorKind::source, "a torch file cannot hold a tensor of {}: torch has no such dtype.",
         name(dtype));
  Index const volume = checked_volume(shape, ErrorKind::source, "tensor shape");
  TensorRef tensor;
  tensor.dtype = dtype;
  tensor.strides = row_major_strides(shape);
  tensor.shape = std::move(shape);
  tensor.storage = own_storage(dtype, volume, tensors.size());
  tensors.push_back(std::move(tensor));
  return add({.kind = Kind::tensor, .index = static_cast<std::uint32_t>(tensors.size() - 1)});
}

std::optional<double> Document::number(NodeId id) const {
  if (id == no_node) return std::nullopt;
  Node const& node = at(id);
  if (node.kind == Kind::real) return node.real;
  if (node.kind == Kind::integer) return static_cast<double>(node.integer);
  if (node.kind == Kind::boolean) return node.boolean ? 1 : 0;
  return std::nullopt;
}

NodeId Document::add_repeated(DType dtype, std::vector<Index> shape) {
  NodeId const node = add_tensor(dtype, std::move(shape));
  tensors.back().repeated = true;
  return node;
}

NodeId Document::add_object(std::string_view module, std::string_view name, NodeId state) {
  NodeId const type = add_global(module, name);
  NodeId const no_arguments = add_tuple();
  return add({.kind = Kind::reduce,
              .callable = type,
              .arguments = no_arguments,
              .state = state,
              .new_object = true});
}

NodeId Document::add_copy(Document const& from, NodeId id) {
  RESHARD_EXPECT(&from != this);
  std::vector<bool> const wanted = pickle::reachable(from, id);
  // Numbers first, so that cycles and sharing are kept.
  std::unordered_map<NodeId, NodeId> numbers;
  for (NodeId old = 0; old < wanted.size(); ++old)
    if (wanted[old]) numbers.emplace(old, static_cast<NodeId>(nodes.size() + numbers.size()));
  auto const renumber = [&](NodeId& old) {
    if (old != no_node) old = numbers.at(old);
  };
  for (NodeId old = 0; old < wanted.size(); ++old) {
    if (!wanted[old]) continue;
    Node node = from.at(old);
    for (NodeId* const one : {&node.callable, &node.arguments, &node.state}) renumber(*one);
    std::ranges::for_each(node.items, renumber);
    std::ranges::for_each(node.pairs, renumber);
    if (node.kind == Kind::tensor) {
      tensors.push_back(from.tensors[node.index]);
      node.index = static_cast<std::uint32_t>(tensors.size() - 1);
    } else if (node.kind == Kind::storage) {
      storages.push_back(from.storages[node.index]);
      node.index = static_cast<std::uint32_t>(storages.size() - 1);
    }
    add(std::move(node));
  }
  return numbers.at(id);
}

NodeId Document::find(NodeId dict, std::string_view key) const {
  auto const* const entries = entries_of(*this, dict);
  auto const at = entries != nullptr ? position_of(*this, *entries, key) : std::nullopt;
  return at ? (*entries)[*at + 1] : no_node;
}

void Document::set(NodeId dict, std::string_view key, NodeId value) {
  auto* entries = entries_of(*this, dict);
  if (entries == nullptr) {
    // An object without attributes has no state yet.
    if (at(dict).kind != Kind::reduce || at(dict).state != no_node)
      fail(
          ErrorKind::source,
          "'{}' cannot be set on a value of class '{}': it keeps no attributes in a dict. Save it as a plain object or dict.",
          key, class_of(dict).second);
    NodeId const state = add_dict();
    at(dict).state = state;
    entries = &at(state).items;
  }
  if (auto const place = position_of(*this, *entries, key)) {
    (*entries)[*place + 1] = value;
    return;
  }
  NodeId const name = add_string(key);
  entries = entries_of(*this, dict);  // adding a node may have moved them
  entries->push_back(name);
  entries->push_back(value);
}

bool Document::erase(NodeId dict, std::string_view key) {
  return erase(dict, [key](std::string_view other, NodeId) { return other == key; });
}

bool Document::erase(NodeId dict, std::function<bool(std::string_view, NodeId)> const& gone) {
  auto* const entries = entries_of(*this, dict);
  if (entries == nullptr) return false;
  std::size_t kept = 0;
  for (std::size_t at = 0; at + 1 < entries->size();
       at += 2) {  // in one go: a key may be there many times
    Node const& key = this->at((*entries)[at]);
    if (key.kind == Kind::string && gone(key.text, (*entries)[at + 1])) continue;
    (*entries)[kept++] = (*entries)[at];
    (*entries)[kept++] = (*entries)[at + 1];
  }
  bool const erased = kept < entries->size();
  entries->resize(kept);
  return erased;
}

std::vector<std::pair<std::string, NodeId>> Document::members(NodeId dict) const {
  std::vector<std::pair<std::string, NodeId>> found;
  auto const* const entries = entries_of(*this, dict);
  if (entries == nullptr) return found;
  std::unordered_map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i + 1 < entries->size(); i += 2) {
    Node const& key = at((*entries)[i]);
    if (key.kind != Kind::string) continue;
    auto const [place, is_new] = places.emplace(key.text, found.size());
    if (is_new)
      found.emplace_back(key.text, (*entries)[i + 1]);
    else
      found[place->second].second =
          (*entries)[i + 1];  // a duplicate key has its last value, as in Python
  }
  return found;
}

std::pair<std::string_view, std::string_view> Document::class_of(NodeId id) const {
  if (id == no_node) return {};
  Node const* node = &at(id);
  if (node->kind == Kind::reduce) {
    if (node->callable == no_node) return {};
    Node const& callable = at(node->callable);
    Node const* const arguments = node->arguments != no_node ? &at(node->arguments) : nullptr;
    // Protocols 0 and 1 make objects by copyreg._reconstructor(class, base, state).
    bool const reconstructed =
        callable.kind == Kind::global &&
        (callable.text == "copy_reg\n_reconstructor" || callable.text == "copyreg\n_reconstructor");
    node = reconstructed && arguments != nullptr && !arguments->items.empty()
               ? &at(arguments->items[0])
               : &callable;
  }
  if (node->kind != Kind::global) return {};
  std::string_view const text = node->text;
  std::size_t const line = text.find('\n');
  if (line == std::string_view::npos) return {};
  return {text.substr(0, line), text.substr(line + 1)};
}

}  // namespace reshard::pickle
