#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"

namespace reshard::pickle {

/// The number of a value in its Document.
using NodeId = std::uint32_t;
inline constexpr NodeId no_node = 0xffffffffU;

enum class Kind : std::uint8_t {
  none,
  boolean,
  integer,
  big_integer,
  real,
  string,
  bytes,
  tuple,
  list,
  dict,
  set,
  frozen_set,
  global,   ///< a class or function by name; never called
  reduce,   ///< callable(*args), state, list items, dict items: an object as a description
  storage,  ///< a persistent id: ('storage', type, key, location, count)
  tensor,   ///< a recognised torch._utils._rebuild_tensor_v2/_v3 (also inside _rebuild_parameter)
};

/// A torch storage named by a persistent id.
struct StorageRef {
  std::string key{};        ///< record name below "data/"
  DType dtype = DType::u8;  ///< of the storage class; u8 for UntypedStorage
  std::uint64_t count = 0;  ///< elements of that class
  std::string location{};   ///< "cpu", "cuda:0"
  bool untyped = false;     ///< the class is UntypedStorage: count is bytes
};

/// A tensor: a strided view of a storage. offset and strides are in elements of `dtype`.
struct TensorRef {
  StorageRef storage{};
  DType dtype = DType::u8;
  Index offset = 0;
  std::vector<Index> shape{};
  std::vector<Index> strides{};
  bool requires_grad = false;
  bool parameter = false;  ///< was a torch.nn.Parameter
  bool repeated = false;   ///< made by add_repeated()
};

/// One value of a pickle. `kind` determines the members that are used.
struct Node {
  Kind kind = Kind::none;
  bool boolean = false;
  std::int64_t integer = 0;
  double real = 0;
  std::string text{};  ///< string (UTF-8), bytes, big_integer (little-endian two's complement);
                       ///< global: "module\nname"
  std::vector<NodeId> items{};  ///< tuple, list, set, frozen_set; dict: key, value, key, value, …;
                                ///< reduce: list items
  NodeId callable = no_node;   ///< reduce
  NodeId arguments = no_node;  ///< reduce: a tuple
  NodeId state = no_node;      ///< reduce: BUILD's argument; tensor: the attributes set on it
  std::vector<NodeId>
      pairs{};              ///< reduce: dict items set on the object (OrderedDict): key, value, …
  bool new_object = false;  ///< reduce: NEWOBJ (cls.__new__) rather than REDUCE
  std::uint32_t index = 0;  ///< storage, tensor: place in Document::storages / Document::tensors
};

/// A complete pickle as inert data: a graph of nodes. Shared nodes stay shared (identity is kept);
/// no name was called or imported.
struct Document {
  std::deque<Node> nodes;  ///< a deque: references stay valid
  std::vector<StorageRef> storages;
  std::vector<TensorRef> tensors;
  NodeId root = no_node;

  Node const& at(NodeId id) const { return nodes[id]; }
  Node& at(NodeId id) { return nodes[id]; }

  NodeId add(Node node);
  NodeId add_none();
  NodeId add_bool(bool value);
  NodeId add_int(std::int64_t value);
  NodeId add_real(double value);
  NodeId add_string(std::string_view value);
  NodeId add_bytes(std::string_view value);
  NodeId add_list(std::vector<NodeId> items = {});
  NodeId add_tuple(std::vector<NodeId> items = {});
  NodeId add_dict();
  NodeId add_global(std::string_view module, std::string_view name);
  /// A contiguous tensor over a storage of its own; the container writer gives the storage its key
  /// in order of appearance.
  NodeId add_tensor(DType dtype, std::vector<Index> shape);
  /// A tensor of equal elements over a storage of one: torch's expand().
  NodeId add_repeated(DType dtype, std::vector<Index> shape);
  /// An object described by a class and its state: argparse.Namespace(**attributes) is
  /// object("argparse", "Namespace", dict).
  NodeId add_object(std::string_view module, std::string_view name, NodeId state);
  /// Deep copy of a subgraph of another document (sharing kept). Tensors keep pointing at `from`'s
  /// storage keys.
  NodeId add_copy(Document const& from, NodeId id);

  /// The value under a string key of a dict, of an OrderedDict (reduce with pairs) or of an
  /// object's state dict; no_node if absent.
  NodeId find(NodeId dict, std::string_view key) const;
  /// The value of a number or a boolean; nullopt for another value, and for no_node.
  std::optional<double> number(NodeId id) const;
  /// Sets a string key of the same kinds of node (replaced in place, else appended).
  void set(NodeId dict, std::string_view key, NodeId value);
  /// Removes a string key; false if it was absent.
  bool erase(NodeId dict, std::string_view key);
  /// Removes the entries with a string key for which `gone` returns true; false if there were none.
  bool erase(NodeId dict, std::function<bool(std::string_view key, NodeId value)> const& gone);
  /// (key, value) of the same kinds of node, string keys only, in order.
  std::vector<std::pair<std::string, NodeId>> members(NodeId dict) const;
  /// The "module" and "name" of the class of an object or of a global; empty if it is neither.
  std::pair<std::string_view, std::string_view> class_of(NodeId id) const;
};

/// Limits against hostile input (docs/formats/torch-file.md).
struct Limits {
  std::size_t largest_nodes = 64U << 20;
  /// Memory of the document and of the parser. A model state of DeepSpeed with 70,000 weights takes
  /// about 350 MiB.
  std::size_t largest_bytes = std::size_t{512} << 20;
  std::size_t deepest = 1000;
};

/// Reads one pickle (protocols 0-5 as far as torch and Python write them) from the start of
/// `bytes`; `consumed` is set to its size. No code is executed: unknown globals become inert nodes.
/// Errors are of kind source and begin with `place` and the byte offset.
Document parse(std::span<std::byte const> bytes, std::string_view place,
               std::size_t* consumed = nullptr, Limits const& limits = {});

/// Writes the document as a protocol 2 pickle, the way torch.save's pickler would: equal documents
/// give equal bytes. Tensors become torch._utils._rebuild_tensor_v2 over their storage's persistent
/// id. `tensors` gets their numbers in the order in which the pickle names their storages, each
/// once.
std::string dump(Document const& document, std::vector<std::uint32_t>* tensors = nullptr);

}  // namespace reshard::pickle
