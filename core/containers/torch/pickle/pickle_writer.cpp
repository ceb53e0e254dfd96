#include <algorithm>

#include "core/base/error.hpp"
#include "core/containers/torch/pickle/pickle.hpp"
#include "core/containers/torch/pickle/pickle_emitter.hpp"
#include "core/containers/torch/pickle/pickle_text.hpp"
#include "core/containers/torch/torch_types.hpp"

namespace reshard::pickle {
namespace {

constexpr std::size_t batch_size =
    1000;  ///< items a SETITEMS or APPENDS, as Python's pickler has it
constexpr std::size_t longest_repeated_integer = 64;  ///< bytes
/// The limit of times that a value may be begun before it is completed. More than one occurs only
/// in cycles through a tuple or a call.
constexpr std::uint8_t most_beginnings = 16;

/// Writes a document depth first without recursion: pending values are on a stack of tasks.
class Writer {
 public:
  explicit Writer(Document const& document)
      : document_(document),
        number_of_(document.nodes.size(), not_stored),
        beginnings_(document.nodes.size()),
        named_(document.tensors.size()) {}

  /// Tensors in the order of their storages.
  std::vector<std::uint32_t> const& tensors() const { return tensors_; }

  std::string run() {
    emit_.protocol();
    later(Task::value, document_.root);
    while (!tasks_.empty()) {
      Pending const next = tasks_.back();
      tasks_.pop_back();
      perform(next);
    }
    emit_.op(Op::stop);
    return emit_.take();
  }

 private:
  static constexpr std::uint32_t not_stored = 0xffffffffU;

  enum class Task : std::uint8_t {
    value,
    opcode,
    items,
    pairs,
    end_tuple,
    end_set,
    end_call,
    end_tensor
  };
  struct Pending {
    Task task = Task::value;
    Op code = Op::none;  ///< opcode
    NodeId node = no_node;
    std::size_t at = 0;  ///< items, pairs: where to continue
  };

  void later(Task task, NodeId node, std::size_t at = 0) {
    tasks_.push_back({.task = task, .node = node, .at = at});
  }
  void later(Op code) { tasks_.push_back({.task = Task::opcode, .code = code}); }
  /// The values will be written in the order they have here.
  void later_all(std::span<NodeId const> nodes) {
    for (std::size_t i = nodes.size(); i > 0; --i) later(Task::value, nodes[i - 1]);
  }

  void perform(Pending const& pending) {
    switch (pending.task) {
      case Task::value: return value(pending.node);
      case Task::opcode: return emit_.op(pending.code);
      case Task::items: return batch(pending, entries(pending), Op::append, Op::appends);
      case Task::pairs: return batch(pending, entries(pending), Op::setitem, Op::setitems);
      case Task::end_tuple: return end_tuple(pending.node);
      case Task::end_set: return end_set(pending.node);
      case Task::end_call: return end_call(pending.node);
      case Task::end_tensor: return end_tensor(pending.node);
    }
  }

  std::vector<NodeId> const& entries(Pending const& pending) const {
    Node const& node = document_.at(pending.node);
    return node.kind == Kind::reduce && pending.task == Task::pairs ? node.pairs : node.items;
  }

  /// One batch of list items or of dict keys and values, and the rest later.
  void batch(Pending const& pending, std::vector<NodeId> const& all, Op one, Op many) {
    std::size_t const width = pending.task == Task::pairs ? 2 : 1;
    std::size_t const left = all.size() - pending.at;
    if (left == 0) return;
    std::size_t const count = std::min(left, batch_size * width);
    // Python's pickler writes a last single item of an exact list or dict as a batch of one, unless
    // it is the only one.
    bool const alone =
        left == width && (pending.at == 0 || document_.at(pending.node).kind == Kind::reduce);
    if (!alone) emit_.op(Op::mark);
    if (left > count) later(pending.task, pending.node, pending.at + count);
    later(alone ? one : many);
    later_all(std::span(all).subspan(pending.at, count));
  }

  void value(NodeId id) {
    RESHARD_EXPECT(id < document_.nodes.size());
    if (number_of_[id] != not_stored) return emit_.fetch(number_of_[id]);
    Node const& node = document_.at(id);
    switch (node.kind) {
      case Kind::none: return emit_.op(Op::none);
      case Kind::boolean: return emit_.op(node.boolean ? Op::newtrue : Op::newfalse);
      case Kind::integer: return emit_.integer(node.integer);
      case Kind::real: return emit_.real(node.real);
      case Kind::string: return emit_.string(node.text);
      case Kind::global: return global(id);
      case Kind::storage: return storage(document_.storages[node.index]);
      case Kind::big_integer: return big_integer(id);
      case Kind::bytes: return bytes(id);
      default: return begin(id);
    }
  }

  /// Python stores no integers in the memo. A long one that is shared a million times must not be
  /// written as often.
  void big_integer(NodeId id) {
    std::string const& bytes = document_.at(id).text;
    emit_.long_integer(bytes);
    if (bytes.size() > longest_repeated_integer) stored(id);
  }

  void stored(NodeId id) { number_of_[id] = emit_.store(); }

  void global(NodeId id) {
    auto const [module, name] = document_.class_of(id);
    emit_.global(module, name);
  }

  void bytes(NodeId id) {
    std::string const& content = document_.at(id).text;
    if (content.empty()) {
      emit_.global("__builtin__", "bytes");
      emit_.close_tuple(0);
    } else {
      emit_.global("_codecs", "encode");
      emit_.unshared_string(utf8_from_latin1(content));
      emit_.string("latin1");
      emit_.close_tuple(2);
    }
    number_of_[id] = emit_.call();
  }

  /// Starts a value made of others.
  void begin(NodeId id) {
    Node const& node = document_.at(id);
    if (node.kind == Kind::tuple && node.items.empty()) return emit_.close_tuple(0);
    if (++beginnings_[id] > most_beginnings)
      fail(ErrorKind::source,
           "a value contains itself through tuples or calls in a way that pickle cannot express.");
    switch (node.kind) {
      case Kind::list: return begin_container(id, Op::empty_list, Task::items);
      case Kind::dict: return begin_container(id, Op::empty_dict, Task::pairs);
      case Kind::set:
      case Kind::frozen_set: return begin_set(id);
      case Kind::tuple: return begin_tuple(id);
      case Kind::reduce: return begin_call(id);
      default: return begin_tensor(id);
    }
  }

  void begin_container(NodeId id, Op empty, Task entries_task) {
    emit_.op(empty);
    stored(id);
    later(entries_task, id);
  }

  void begin_set(NodeId id) {
    emit_.global("__builtin__", document_.at(id).kind == Kind::set ? "set" : "frozenset");
    emit_.op(Op::empty_list);
    emit_.store();
    later(Task::end_set, id);
    later(Task::items, id);
  }

  void end_set(NodeId id) {
    emit_.close_tuple(1);
    emit_.op(Op::reduce);
    if (number_of_[id] == not_stored) return stored(id);
    emit_.op(Op::pop);
    emit_.fetch(number_of_[id]);
  }

  void begin_tuple(NodeId id) {
    std::vector<NodeId> const& items = document_.at(id).items;
    if (items.size() > 3) emit_.op(Op::mark);
    later(Task::end_tuple, id);
    later_all(items);
  }

  void end_tuple(NodeId id) {
    std::size_t const count = document_.at(id).items.size();
    if (number_of_[id] == not_stored) {
      emit_.close_tuple_unstored(count);
      return stored(id);
    }
    // Its items led back to it, and on that way it was written: drop them and take that one.
    if (count > 3)
      emit_.op(Op::pop_mark);
    else
      for (std::size_t i = 0; i < count; ++i) emit_.op(Op::pop);
    emit_.fetch(number_of_[id]);
  }

  void begin_call(NodeId id) {
    Node const& node = document_.at(id);
    RESHARD_EXPECT(node.callable != no_node && node.arguments != no_node &&
                   document_.at(node.arguments).kind == Kind::tuple);
    later(Task::end_call, id);
    later(Task::value, node.arguments);
    later(Task::value, node.callable);
  }

  void end_call(NodeId id) {
    Node const& node = document_.at(id);
    emit_.op(node.new_object ? Op::newobj : Op::reduce);
    if (number_of_[id] != not_stored) {
      emit_.op(Op::pop);
      return emit_.fetch(number_of_[id]);
    }
    stored(id);
    if (node.state != no_node) {
      later(Op::build);
      later(Task::value, node.state);
    }
    later(Task::pairs, id);
    later(Task::items, id);
  }

  // Torch.

  void storage(StorageRef const& storage) {
    emit_.op(Op::mark);
    emit_.string("storage");
    if (storage.untyped)
      emit_.global("torch.storage", "UntypedStorage");
    else
      emit_.global("torch", type_of(storage.dtype).storage_class);
    emit_.string(storage.key);
    emit_.string(storage.location);
    emit_.integer(narrow<std::int64_t>(storage.count));
    emit_.close_tuple(5);
    emit_.op(Op::binpersid);
  }

  static TorchType const& type_of(DType dtype) {
    TorchType const* const type = torch_type(dtype);
    RESHARD_EXPECT(type != nullptr);
    return *type;
  }

  static bool needs_dtype(TensorRef const& tensor) {
    return tensor.storage.untyped || tensor.storage.dtype != tensor.dtype;
  }

  void sizes(std::vector<Index> const& values) {
    if (values.size() > 3) emit_.op(Op::mark);
    for (Index const size : values) emit_.integer(size);
    emit_.close_tuple(values.size());
  }

  void no_hooks() {
    emit_.global("collections", "OrderedDict");
    emit_.close_tuple(0);
    emit_.call();
  }

  void rebuild_function(TensorRef const& tensor) {
    emit_.global("torch._utils", needs_dtype(tensor) ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  }

  /// (storage, offset, size, stride, requires_grad, hooks[, dtype])
  void rebuild_arguments(TensorRef const& tensor, bool requires_grad) {
    emit_.op(Op::mark);
    storage(tensor.storage);
    emit_.integer(tensor.offset);
    sizes(tensor.shape);
    sizes(tensor.strides);
    emit_.op(requires_grad ? Op::newtrue : Op::newfalse);
    no_hooks();
    if (needs_dtype(tensor)) emit_.global("torch", type_of(tensor.dtype).name);
    emit_.close_tuple(needs_dtype(tensor) ? 7 : 6);
  }

  /// Up to the place where the tensor's state belongs, or to the end when it has none.
  void begin_tensor(NodeId id) {
    Node const& node = document_.at(id);
    TensorRef const& tensor = document_.tensors[node.index];
    if (!named_[node.index]) tensors_.push_back(node.index);
    named_[node.index] = true;
    bool const has_state = node.state != no_node;
    if (tensor.parameter)
      emit_.global("torch._utils",
                   has_state ? "_rebuild_parameter_with_state" : "_rebuild_parameter");
    if (tensor.parameter && has_state) emit_.op(Op::mark);
    if (!tensor.parameter && has_state) {
      emit_.global("torch._tensor", "_rebuild_from_type_v2");
      emit_.op(Op::mark);
      rebuild_function(tensor);
      emit_.global("torch", "Tensor");
      rebuild_arguments(tensor, tensor.requires_grad);
    } else {
      rebuild_function(tensor);
      rebuild_arguments(tensor, !tensor.parameter && tensor.requires_grad);
      std::uint32_t const number = emit_.call();
      if (!tensor.parameter) {
        number_of_[id] = number;
        return;
      }
      emit_.op(tensor.requires_grad ? Op::newtrue : Op::newfalse);
      no_hooks();
    }
    later(Task::end_tensor, id);
    if (has_state) later(Task::value, node.state);
  }

  void end_tensor(NodeId id) {
    emit_.close_tuple(document_.at(id).state != no_node ? 4 : 3);
    emit_.op(Op::reduce);
    if (number_of_[id] == not_stored) return stored(id);
    emit_.op(Op::pop);
    emit_.fetch(number_of_[id]);
  }

  Document const& document_;
  Emitter emit_;
  std::vector<Pending> tasks_;
  std::vector<std::uint32_t> number_of_;  ///< in the memo
  std::vector<std::uint8_t> beginnings_;
  std::vector<std::uint32_t> tensors_;
  std::vector<bool> named_;  ///< tensor is in tensors_
};

}  // namespace

std::string dump(Document const& document, std::vector<std::uint32_t>* tensors) {
  Writer writer(document);
  std::string bytes = writer.run();
  if (tensors != nullptr) *tensors = writer.tensors();
  return bytes;
}

}  // namespace reshard::pickle
