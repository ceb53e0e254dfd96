#include <array>

#include "core/containers/torch/pickle/pickle_builder.hpp"
#include "core/containers/torch/pickle/pickle_text.hpp"
#include "core/containers/torch/torch_types.hpp"

namespace reshard::pickle {
namespace {

constexpr std::size_t largest_rank = 64;         ///< of a tensor
constexpr std::size_t largest_name_bytes = 255;  ///< of a storage key or location
constexpr std::size_t freely_copied_bytes = 1024;

using Items = std::span<NodeId const>;

/// Reads the arguments of the torch._utils rebuild functions. Unexpected arguments are an Error,
/// not an opaque object, so that no tensor is lost silently.
class TensorArguments {
 public:
  TensorArguments(Builder& builder, std::string_view function, Items items)
      : builder_(builder), function_(function), items_(items) {}

  void expect_count(std::size_t least, std::size_t most) const {
    if (items_.size() < least || items_.size() > most)
      builder_.refuse("{} has {} arguments, expected {} to {}. The file is damaged.", function_,
                      items_.size(), least, most);
  }
  Node const& expect(std::size_t at, Kind kind, std::string_view what) const {
    Node const& node = builder_.document.at(items_[at]);
    if (node.kind != kind)
      builder_.refuse("the {} of {} is a {}, expected a {}. The file is damaged.", what, function_,
                      kind_name(node.kind), kind_name(kind));
    return node;
  }
  StorageRef storage() const {
    return builder_.document.storages[expect(0, Kind::storage, "storage").index];
  }
  Index integer(std::size_t at, std::string_view what) const {
    return expect(at, Kind::integer, what).integer;
  }
  bool boolean(std::size_t at, std::string_view what) const {
    return expect(at, Kind::boolean, what).boolean;
  }

  std::vector<Index> sizes(std::size_t at, std::string_view what) const {
    Node const* node = &builder_.document.at(items_[at]);
    if (node->kind == Kind::reduce &&
        builder_.document.class_of(items_[at]) ==
            std::pair<std::string_view, std::string_view>("torch", "Size")) {
      Node const& arguments = builder_.document.at(node->arguments);
      if (arguments.items.size() == 1) node = &builder_.document.at(arguments.items[0]);
    }
    if (node->kind != Kind::tuple)
      builder_.refuse("the {} of {} is a {}, expected a tuple. The file is damaged.", what,
                      function_, kind_name(node->kind));
    if (node->items.size() > largest_rank)
      builder_.refuse("the {} of {} has {} dimensions, at most {} are read. The file is damaged.",
                      what, function_, node->items.size(), largest_rank);
    std::vector<Index> values;
    for (NodeId const item : node->items) {
      if (builder_.document.at(item).kind != Kind::integer)
        builder_.refuse("the {} of {} holds a {}, expected an int. The file is damaged.", what,
                        function_, kind_name(builder_.document.at(item).kind));
      values.push_back(builder_.document.at(item).integer);
    }
    return values;
  }

 private:
  Builder& builder_;
  std::string_view function_;
  Items items_;
};

bool is_absent(Builder const& builder, Items items, std::size_t at) {
  if (at >= items.size()) return true;
  Node const& node = builder.document.at(items[at]);
  return node.kind == Kind::none || (node.kind == Kind::dict && node.items.empty());
}

NodeId add_tensor_node(Builder& builder, TensorRef tensor, NodeId state) {
  if (tensor.shape.size() != tensor.strides.size())
    builder.refuse("a tensor has {} sizes but {} strides. The file is damaged.",
                   tensor.shape.size(), tensor.strides.size());
  builder.charge(sizeof(TensorRef) + tensor.shape.size() * 2 * sizeof(Index) +
                 tensor.storage.key.size() + tensor.storage.location.size());
  NodeId const id =
      builder.add({.kind = Kind::tensor,
                   .state = state,
                   .index = static_cast<std::uint32_t>(builder.document.tensors.size())});
  builder.document.tensors.push_back(std::move(tensor));
  return id;
}

/// (storage, offset, size, stride[, requires_grad, hooks[, metadata]]); no_node for more than a
/// plain strided view.
NodeId rebuild_tensor(Builder& builder, Items items, NodeId state) {
  TensorArguments const arguments(builder, "_rebuild_tensor", items);
  arguments.expect_count(4, 7);
  if (!is_absent(builder, items, 6))
    return no_node;  // conjugate or negative bit: the stored elements are not the values
  TensorRef tensor{.storage = arguments.storage()};
  if (tensor.storage.untyped)
    builder.refuse(
        "_rebuild_tensor_v2 over an UntypedStorage gives no element type. The file is damaged.");
  tensor.dtype = tensor.storage.dtype;
  tensor.offset = arguments.integer(1, "offset");
  tensor.shape = arguments.sizes(2, "size");
  tensor.strides = arguments.sizes(3, "stride");
  tensor.requires_grad = items.size() > 4 && arguments.boolean(4, "requires_grad");
  return add_tensor_node(builder, std::move(tensor), state);
}

/// (storage, offset, size, stride, requires_grad, hooks, dtype[, metadata]): torch's form for
/// element types without a storage class.
NodeId rebuild_tensor_v3(Builder& builder, Items items, NodeId state) {
  TensorArguments const arguments(builder, "_rebuild_tensor_v3", items);
  arguments.expect_count(7, 8);
  if (!is_absent(builder, items, 7)) return no_node;
  arguments.expect(6, Kind::global, "dtype");
  auto const [module, name] = builder.document.class_of(items[6]);
  auto const dtype = module == "torch" ? dtype_from_torch_name(name) : std::nullopt;
  if (!dtype) return no_node;
  TensorRef tensor{.storage = arguments.storage(), .dtype = *dtype};
  tensor.offset = arguments.integer(1, "offset");
  tensor.shape = arguments.sizes(2, "size");
  tensor.strides = arguments.sizes(3, "stride");
  tensor.requires_grad = arguments.boolean(4, "requires_grad");
  return add_tensor_node(builder, std::move(tensor), state);
}

/// (tensor, requires_grad, hooks[, state]).
NodeId rebuild_parameter(Builder& builder, Items items, NodeId) {
  TensorArguments const arguments(builder, "_rebuild_parameter", items);
  arguments.expect_count(3, 4);
  Node const& data = builder.document.at(items[0]);
  // A Parameter around something opaque (a quantised tensor, a subclass) stays opaque too.
  if (data.kind == Kind::reduce) return no_node;
  if (arguments.expect(0, Kind::tensor, "data").state != no_node) return no_node;
  TensorRef tensor = builder.document.tensors[data.index];
  if (tensor.parameter) return no_node;
  tensor.parameter = true;
  tensor.requires_grad = arguments.boolean(1, "requires_grad");
  return add_tensor_node(builder, std::move(tensor), items.size() == 4 ? items[3] : no_node);
}

/// (function, class, arguments, state): a torch.Tensor with attributes. A subclass stays opaque.
NodeId rebuild_from_type(Builder& builder, Items items, NodeId) {
  if (items.size() != 4) return no_node;
  Document const& document = builder.document;
  std::string_view const function = document.at(items[0]).text;
  if (document.at(items[0]).kind != Kind::global || document.at(items[1]).kind != Kind::global ||
      document.at(items[1]).text != "torch\nTensor")
    return no_node;
  if (document.at(items[2]).kind != Kind::tuple) return no_node;
  std::vector<NodeId> const arguments = document.at(items[2]).items;
  if (function == "torch._utils\n_rebuild_tensor_v2")
    return rebuild_tensor(builder, arguments, items[3]);
  if (function == "torch._utils\n_rebuild_tensor_v3")
    return rebuild_tensor_v3(builder, arguments, items[3]);
  return no_node;
}

/// _codecs.encode(text, 'latin1'): how protocol 2 writes bytes.
NodeId encode_latin1(Builder& builder, Items items, NodeId) {
  if (items.size() != 2) return no_node;
  Node const& text = builder.document.at(items[0]);
  Node const& codec = builder.document.at(items[1]);
  if (text.kind != Kind::string || codec.kind != Kind::string ||
      (codec.text != "latin1" && codec.text != "latin-1"))
    return no_node;
  if (text.text.size() > freely_copied_bytes && !builder.first_copy_of(items[0])) return no_node;
  auto bytes = latin1_from_utf8(text.text);
  if (!bytes)
    builder.refuse("_codecs.encode(…, 'latin1') has a character above 255. The file is damaged.");
  return builder.add({.kind = Kind::bytes, .text = std::move(*bytes)});
}

/// set([…]) and frozenset([…]), the forms of protocols below 4.
NodeId collect(Builder& builder, Items items, Kind kind) {
  if (items.size() > 1) return no_node;
  std::vector<NodeId> members;
  if (items.size() == 1) {
    Node const& list = builder.document.at(items[0]);
    if (list.kind != Kind::list || (list.items.size() > 16 && !builder.first_copy_of(items[0])))
      return no_node;
    members = list.items;
  }
  return builder.add({.kind = kind, .items = std::move(members)});
}

NodeId make_set(Builder& builder, Items items, NodeId) {
  return collect(builder, items, Kind::set);
}
NodeId make_frozen_set(Builder& builder, Items items, NodeId) {
  return collect(builder, items, Kind::frozen_set);
}
NodeId make_empty(Builder& builder, Items items, Kind kind) {
  return items.empty() ? builder.add({.kind = kind}) : no_node;
}
NodeId make_list(Builder& builder, Items items, NodeId) {
  return make_empty(builder, items, Kind::list);
}
NodeId make_dict(Builder& builder, Items items, NodeId) {
  return make_empty(builder, items, Kind::dict);
}
NodeId make_tuple(Builder& builder, Items items, NodeId) {
  return make_empty(builder, items, Kind::tuple);
}
NodeId make_bytes(Builder& builder, Items items, NodeId) {
  return make_empty(builder, items, Kind::bytes);
}

struct KnownCall {
  std::string_view callable;  ///< as Node::text has it
  NodeId (*make)(Builder&, Items, NodeId state);
};

constexpr std::array known_calls = {
    KnownCall{"torch._utils\n_rebuild_tensor_v2", rebuild_tensor},
    KnownCall{"torch._utils\n_rebuild_tensor_v3", rebuild_tensor_v3},
    KnownCall{"torch._utils\n_rebuild_tensor", rebuild_tensor},
    KnownCall{"torch._utils\n_rebuild_parameter", rebuild_parameter},
    KnownCall{"torch._utils\n_rebuild_parameter_with_state", rebuild_parameter},
    KnownCall{"torch._tensor\n_rebuild_from_type_v2", rebuild_from_type},
    KnownCall{"_codecs\nencode", encode_latin1},
    KnownCall{"__builtin__\nset", make_set},
    KnownCall{"__builtin__\nfrozenset", make_frozen_set},
    KnownCall{"__builtin__\nlist", make_list},
    KnownCall{"__builtin__\ndict", make_dict},
    KnownCall{"__builtin__\ntuple", make_tuple},
    KnownCall{"__builtin__\nbytes", make_bytes},
    KnownCall{"builtins\nset", make_set},
    KnownCall{"builtins\nfrozenset", make_frozen_set},
    KnownCall{"builtins\nlist", make_list},
    KnownCall{"builtins\ndict", make_dict},
    KnownCall{"builtins\ntuple", make_tuple},
    KnownCall{"builtins\nbytes", make_bytes},
};

NodeId make_known(Builder& builder, NodeId callable, NodeId arguments) {
  Node const& node = builder.document.at(callable);
  if (node.kind != Kind::global) return no_node;
  for (KnownCall const& call : known_calls) {
    if (call.callable != node.text) continue;
    // A copy: adding nodes moves the document's storage. Known calls take few arguments, so hostile
    // long tuples are not copied.
    std::vector<NodeId> const& items = builder.document.at(arguments).items;
    if (items.size() > 8) return no_node;
    return call.make(builder, std::vector<NodeId>(items), no_node);
  }
  return no_node;
}

/// Sets the element type of a storage class; refuses other classes.
void set_storage_class(Builder& builder, StorageRef& storage, NodeId type) {
  auto const [module, name] = builder.document.class_of(type);
  bool const untyped = (module == "torch.storage" || module == "torch") &&
                       (name == "UntypedStorage" || name == "_UntypedStorage");
  auto const dtype = untyped                                       ? DType::u8
                     : module == "torch" || module == "torch.cuda" ? dtype_from_storage_class(name)
                                                                   : std::nullopt;
  if (!dtype)
    builder.refuse(
        "the storage class '{}.{}' is not one of torch's plain element types. Convert such tensors with torch first.",
        module, name);
  storage.dtype = *dtype;
  storage.untyped = untyped;
}

}  // namespace

NodeId make_call(Builder& builder, NodeId callable, NodeId arguments) {
  Kind const kind = builder.document.at(callable).kind;
  if (kind != Kind::global && kind != Kind::reduce)
    builder.refuse("a {} is called like a function. The file is damaged.", kind_name(kind));
  if (builder.document.at(arguments).kind != Kind::tuple)
    builder.refuse("the arguments of a call are a {}, expected a tuple. The file is damaged.",
                   kind_name(builder.document.at(arguments).kind));
  NodeId const known = make_known(builder, callable, arguments);
  if (known != no_node) {
    builder.note_made_of(known, arguments);
    return known;
  }
  return builder.add({.kind = Kind::reduce, .callable = callable, .arguments = arguments});
}

NodeId make_storage(Builder& builder, NodeId persistent_id) {
  Document& document = builder.document;
  Node const& tuple = document.at(persistent_id);
  bool const sized =
      tuple.kind == Kind::tuple && (tuple.items.size() == 5 || tuple.items.size() == 6);
  auto const item = [&](std::size_t at) -> Node const& { return document.at(tuple.items[at]); };
  if (!sized || item(0).kind != Kind::string || item(0).text != "storage" ||
      item(1).kind != Kind::global || item(2).kind != Kind::string ||
      item(3).kind != Kind::string || item(4).kind != Kind::integer)
    builder.refuse(
        "a persistent id is not ('storage', class, key, location, count). The file was not written by torch.save.");
  if (tuple.items.size() == 6 && item(5).kind != Kind::none)
    builder.refuse(
        "a storage is a view of another (written by torch before 0.4). Load and save the file with a newer torch first.");
  if (item(2).text.empty() || item(2).text.size() > largest_name_bytes ||
      item(3).text.size() > largest_name_bytes)
    builder.refuse(
        "a storage key of {} bytes at a location of {}: expected 1 to {} and at most as many. The file is damaged.",
        item(2).text.size(), item(3).text.size(), largest_name_bytes);
  if (item(4).integer < 0)
    builder.refuse("a storage has {} elements. The file is damaged.", item(4).integer);
  StorageRef storage{.key = item(2).text,
                     .count = static_cast<std::uint64_t>(item(4).integer),
                     .location = item(3).text};
  set_storage_class(builder, storage, tuple.items[1]);
  builder.charge(sizeof(StorageRef) + storage.key.size() + storage.location.size());
  document.storages.push_back(std::move(storage));
  NodeId const node = builder.add(
      {.kind = Kind::storage, .index = static_cast<std::uint32_t>(document.storages.size() - 1)});
  builder.note_made_of(node, persistent_id);
  return node;
}

}  // namespace reshard::pickle
