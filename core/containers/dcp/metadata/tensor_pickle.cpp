#include "core/containers/dcp/metadata/tensor_pickle.hpp"

#include "core/containers/torch/little_endian.hpp"
#include "core/containers/torch/pickle/pickle_emitter.hpp"
#include "core/containers/torch/pickle/pickle_opcodes.hpp"
#include "core/containers/torch/torch_types.hpp"

namespace reshard::dcp {
namespace {

using pickle::Op;

constexpr std::size_t largest_rank = 64;
constexpr std::string_view ordered_dict = "collections\nOrderedDict\n";
constexpr std::string_view rebuild_tensor = "torch._utils\n_rebuild_tensor_v2\n";
constexpr std::string_view rebuild_tensor_v3 = "torch._utils\n_rebuild_tensor_v3\n";
constexpr std::string_view rebuild_parameter = "torch._utils\n_rebuild_parameter\n";
constexpr std::string_view untyped_storage = "torch.storage\nUntypedStorage\n";

/// Steps over a pickle that must be as expected. After the first difference every call returns
/// false without moving.
class Matcher {
 public:
  explicit Matcher(std::string_view bytes) : bytes_(bytes) {}

  std::optional<PickledTensor> run() {
    pickle::TensorRef tensor;
    bool const good = op(Op::proto) && literal("\2") && value(tensor) && op(Op::stop);
    if (!good) return std::nullopt;
    return PickledTensor{.tensor = std::move(tensor), .size_bytes = at_};
  }

 private:
  bool peek(Op code) const {
    return at_ < bytes_.size() &&
           static_cast<std::uint8_t>(bytes_[at_]) == static_cast<std::uint8_t>(code);
  }
  bool op(Op code) {
    bool const there = peek(code);
    if (there) ++at_;
    return there;
  }
  bool literal(std::string_view text) {
    bool const there = bytes_.substr(at_, text.size()) == text;
    if (there) at_ += text.size();
    return there;
  }

  bool number(std::size_t width, std::uint64_t& value) {
    if (bytes_.size() - at_ < width) return false;
    value = 0;
    for (std::size_t i = 0; i < width; ++i)
      value |= std::uint64_t{static_cast<std::uint8_t>(bytes_[at_ + i])} << (8 * i);
    at_ += width;
    return true;
  }

  /// The memo may take any value; its number is kept for the one value that is fetched again.
  bool memo(std::optional<std::uint64_t>* place = nullptr) {
    std::uint64_t index = 0;
    std::size_t const width = peek(Op::binput) ? 1 : peek(Op::long_binput) ? 4 : 0;
    if (width == 0) return true;
    ++at_;
    if (!number(width, index)) return false;
    if (place != nullptr) *place = index;
    return true;
  }

  bool integer(Index& value) {
    std::uint64_t raw = 0;
    if (op(Op::binint1) || op(Op::binint2)) {
      if (!number(static_cast<Op>(bytes_[at_ - 1]) == Op::binint1 ? 1 : 2, raw)) return false;
    } else if (op(Op::binint)) {
      if (!number(4, raw) || raw >= 1U << 31) return false;
    } else {
      std::uint64_t width = 0;
      if (!op(Op::long1) || !number(1, width) || width == 0 || width > 8 || !number(width, raw))
        return false;
      if (raw >> (8 * width - 1) != 0) return false;  // negative
    }
    value = static_cast<Index>(raw);
    return true;
  }

  bool boolean(bool& value) {
    value = peek(Op::newtrue);
    return op(Op::newtrue) || op(Op::newfalse);
  }

  bool string(std::string_view& text) {
    std::uint64_t size = 0;
    if (!op(Op::binunicode) || !number(4, size) || bytes_.size() - at_ < size) return false;
    text = bytes_.substr(at_, size);
    at_ += size;
    return memo();
  }

  bool name_up_to_newline(std::string_view& name) {
    std::size_t const end = bytes_.find('\n', at_);
    if (end == bytes_.npos) return false;
    name = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return memo();
  }

  bool sizes(std::vector<Index>& values) {
    if (op(Op::empty_tuple)) return true;
    bool const marked = op(Op::mark);
    Op const close[] = {Op::tuple1, Op::tuple2, Op::tuple3};
    for (;;) {
      Index value = 0;
      if (!integer(value)) return false;
      values.push_back(value);
      if (values.size() > largest_rank) return false;
      if (marked ? op(Op::tuple) : op(close[values.size() - 1])) return memo();
      if (!marked && values.size() == 3) return false;
    }
  }

  bool no_hooks() {
    if (op(Op::global)) {
      if (!literal(ordered_dict) || !memo(&ordered_dict_)) return false;
    } else {
      std::uint64_t index = 0;
      if (!op(Op::binget) || !number(1, index) || index != ordered_dict_) return false;
    }
    return op(Op::empty_tuple) && op(Op::reduce) && memo();
  }

  bool storage(pickle::StorageRef& storage) {
    std::string_view word;
    if (!op(Op::mark) || !string(word) || word != "storage" || !op(Op::global)) return false;
    if (literal(untyped_storage)) {
      storage.untyped = true;
      if (!memo()) return false;
    } else {
      std::string_view name;
      if (!literal("torch\n") || !name_up_to_newline(name)) return false;
      auto const dtype = pickle::dtype_from_storage_class(name);
      if (!dtype) return false;
      storage.dtype = *dtype;
    }
    std::string_view key;
    std::string_view location;
    Index count = 0;
    if (!string(key) || key != "0" || !string(location) || !integer(count)) return false;
    storage.key = key;
    storage.location = location;
    storage.count = static_cast<std::uint64_t>(count);
    return op(Op::tuple) && memo() && op(Op::binpersid);
  }

  /// The arguments behind the function's name, and the call.
  bool tensor_arguments(pickle::TensorRef& tensor, bool with_dtype) {
    bool const good = memo() && op(Op::mark) && storage(tensor.storage) && integer(tensor.offset) &&
                      sizes(tensor.shape) && sizes(tensor.strides) &&
                      boolean(tensor.requires_grad) && no_hooks() &&
                      tensor.shape.size() == tensor.strides.size();
    if (!good || tensor.storage.untyped != with_dtype) return false;
    tensor.dtype = tensor.storage.dtype;
    if (with_dtype) {
      std::string_view name;
      if (!op(Op::global) || !literal("torch\n") || !name_up_to_newline(name)) return false;
      auto const dtype = pickle::dtype_from_torch_name(name);
      if (!dtype) return false;
      tensor.dtype = *dtype;
    }
    return op(Op::tuple) && memo() && op(Op::reduce) && memo();
  }

  bool plain_tensor(pickle::TensorRef& tensor) {
    if (literal(rebuild_tensor)) return tensor_arguments(tensor, false);
    return literal(rebuild_tensor_v3) && tensor_arguments(tensor, true);
  }

  bool value(pickle::TensorRef& tensor) {
    if (!op(Op::global)) return false;
    if (!literal(rebuild_parameter)) return plain_tensor(tensor);
    tensor.parameter = true;
    return memo() && op(Op::global) && plain_tensor(tensor) && boolean(tensor.requires_grad) &&
           no_hooks() && op(Op::tuple3) && memo() && op(Op::reduce) && memo();
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  std::optional<std::uint64_t> ordered_dict_;  ///< its place in the memo
};

void append(std::string& out, Op code) { out.push_back(static_cast<char>(code)); }

void append_string(std::string& out, std::string_view text) {
  append(out, Op::binunicode);
  append_little_endian(out, static_cast<std::uint32_t>(text.size()));
  out += text;
}

void append_global(std::string& out, std::string_view module, std::string_view name) {
  append(out, Op::global);
  out += module;
  out += '\n';
  out += name;
  out += '\n';
}

void append_sizes(std::string& out, std::span<Index const> sizes) {
  constexpr Op close[] = {Op::empty_tuple, Op::tuple1, Op::tuple2, Op::tuple3};
  if (sizes.size() > 3) append(out, Op::mark);
  for (Index const size : sizes) pickle::append_integer(out, size);
  append(out, sizes.size() > 3 ? Op::tuple : close[sizes.size()]);
}

void append_storage(std::string& out, pickle::StorageRef const& storage,
                    pickle::TorchType const& type) {
  append(out, Op::mark);
  append_string(out, "storage");
  if (storage.untyped)
    append_global(out, "torch.storage", "UntypedStorage");
  else
    append_global(out, "torch", type.storage_class);
  append_string(out, storage.key);
  append_string(out, storage.location);
  pickle::append_integer(out, narrow<Index>(storage.count));
  append(out, Op::tuple);
  append(out, Op::binpersid);
}

}  // namespace

std::optional<PickledTensor> match_tensor_pickle(std::string_view bytes) {
  return Matcher(bytes).run();
}

std::string tensor_pickle(DType dtype, std::span<Index const> shape) {
  pickle::TorchType const* const type = pickle::torch_type(dtype);
  if (type == nullptr)
    fail(ErrorKind::source, "a torch file cannot hold a tensor of {}: torch has no such dtype.",
         name(dtype));
  pickle::StorageRef const storage =
      pickle::own_storage(dtype, checked_volume(shape, ErrorKind::source, "tensor shape"), 0);
  std::string out = "\x80\2";
  append(out, Op::global);
  out += storage.untyped ? rebuild_tensor_v3 : rebuild_tensor;
  append(out, Op::mark);
  append_storage(out, storage, *type);
  pickle::append_integer(out, 0);
  append_sizes(out, shape);
  append_sizes(out, pickle::row_major_strides(shape));
  append(out, Op::newfalse);
  append(out, Op::global);
  out += ordered_dict;
  append(out, Op::empty_tuple);
  append(out, Op::reduce);
  if (storage.untyped) append_global(out, "torch", type->name);
  append(out, Op::tuple);
  append(out, Op::reduce);
  append(out, Op::stop);
  return out;
}

}  // namespace reshard::dcp
