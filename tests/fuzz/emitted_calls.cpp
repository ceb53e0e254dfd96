// A second opinion on pickles: it shares no code, no opcode table and no list with the program.

#include "tests/fuzz/emitted_calls.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <set>
#include <unordered_map>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

namespace reshard::fuzz {
namespace {

/// What may be called: it makes a value.
bool is_maker(std::string_view module, std::string_view name) {
  static std::set<std::string, std::less<>> const makers = [] {
    std::set<std::string, std::less<>> all = {"_codecs.encode",
                                              "_io.BytesIO",
                                              "_io.StringIO",
                                              "io.BytesIO",
                                              "io.StringIO",
                                              "argparse.Namespace",
                                              "types.SimpleNamespace",
                                              "collections.Counter",
                                              "collections.OrderedDict",
                                              "collections.defaultdict",
                                              "collections.deque",
                                              "copy_reg._reconstructor",
                                              "copyreg._reconstructor",
                                              "decimal.Decimal",
                                              "datetime.date",
                                              "datetime.datetime",
                                              "datetime.time",
                                              "datetime.timedelta",
                                              "datetime.timezone",
                                              "signal.Handlers",
                                              "signal.Signals",
                                              "numpy.dtype",
                                              "torch.Size",
                                              "torch.device",
                                              "torch._C.Generator",
                                              "torch._tensor._rebuild_from_type_v2",
                                              "torch._utils._rebuild_tensor",
                                              "torch._utils._rebuild_tensor_v2",
                                              "torch._utils._rebuild_tensor_v3",
                                              "torch._utils._rebuild_parameter",
                                              "torch._utils._rebuild_parameter_with_state",
                                              "torch.torch_version.TorchVersion",
                                              "__builtin__.xrange"};
    for (char const* const type : {"bytearray", "complex", "frozenset", "range", "set", "slice"})
      for (std::string const builtins : {"__builtin__.", "builtins."}) all.insert(builtins + type);
    for (std::string const core : {"numpy.core.multiarray.", "numpy._core.multiarray."})
      all.insert({core + "_reconstruct", core + "scalar"});
    for (std::string const paths : {"pathlib.", "pathlib._local."})
      for (char const* const type :
           {"Path", "PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath", "WindowsPath"})
        all.insert(paths + type);
    return all;
  }();
  // The framework that these checkpoints come from; its own modules are looked at by the program's
  // list.
  return makers.contains(std::string(module) + '.' + std::string(name)) ||
         module.starts_with("megatron.");
}

/// What may be named without being called: types of numbers, and those that an object is made of.
bool is_type(std::string_view module, std::string_view name) {
  constexpr std::array<std::string_view, 13> plain = {
      "bool",   "bytes", "dict",  "float",   "int",       "list", "long",
      "object", "str",   "tuple", "unicode", "bytearray", "set"};
  if (module == "__builtin__" || module == "builtins")
    return std::ranges::find(plain, name) != plain.end();
  bool const number = name.starts_with("float") || name.starts_with("bfloat") ||
                      name.starts_with("int") || name.starts_with("uint") ||
                      name.starts_with("complex") || name.starts_with("bool");
  if (module == "numpy") return number || name == "ndarray";
  if (module == "torch.storage") return name == "UntypedStorage" || name == "_UntypedStorage";
  if (module == "torch" || module == "torch.cuda")
    return number || name == "Tensor" || name.ends_with("Storage");
  return module == "signal" && name.starts_with("SIG") && name.find('_') == std::string_view::npos;
}

class Reader {
 public:
  explicit Reader(std::string_view pickle) : left_(pickle) {}

  std::string run() {
    while (found_.empty()) {
      auto const op = static_cast<std::uint8_t>(take(1)[0]);
      if (op == '.') {
        FUZZ_EXPECT(stack_.size() == 1 && marks_.empty() && left_.empty());
        break;
      }
      step(op);
    }
    return found_;
  }

 private:
  /// What a value is, as far as it matters here.
  struct Value {
    enum class Kind { plain, text, tuple, name } kind = Kind::plain;
    std::string text{};  ///< of a text
    std::string module{};
    std::string attribute{};     ///< of a name: a class or a function, which may be called
    std::vector<Value> items{};  ///< of a tuple with few items: those that are names or texts
  };

  void step(std::uint8_t op) {
    switch (op) {
      case 0x80: FUZZ_EXPECT(take(1)[0] == 2); return;
      case '(': marks_.push_back(stack_.size()); return;
      case 'N':
      case 0x88:
      case 0x89:
      case ']':
      case '}': return push({});
      case 'K': take(1); return push({});
      case 'M': take(2); return push({});
      case 'J': take(4); return push({});
      case 'G': take(8); return push({});
      case 0x8a: take(word(1)); return push({});
      case 0x8b: take(word(4)); return push({});
      case 'X': return push({.kind = Value::Kind::text, .text = std::string(take(word(4)))});
      case ')': return push({.kind = Value::Kind::tuple});
      case 0x85:
      case 0x86:
      case 0x87: return make_tuple(op - 0x84U);
      case 't': return make_tuple(above_mark());
      case 'q': memo_[word(1)] = top(); return;
      case 'r': memo_[word(4)] = top(); return;
      case 'h': return push(memo_.at(word(1)));
      case 'j': return push(memo_.at(word(4)));
      case '0': pop(); return;
      case '1': drop(above_mark()); return;
      case 'a':
        pop();
        top();
        return;
      case 's':
        drop(2);
        top();
        return;
      case 'e':
      case 'u':
        drop(above_mark());
        top();
        return;
      case 'b':
        pop();
        top();
        return;
      case 'Q': pop(); return push({});
      case 'c': return push_name();
      case 'R':
      case 0x81: return call();
      default:
        std::fprintf(stderr, "opcode 0x%02x\n", op);
        FUZZ_EXPECT(!"an opcode that the emitter does not write");
    }
  }

  std::string_view take(std::uint64_t count) {
    FUZZ_EXPECT(count <= left_.size());
    std::string_view const taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }
  std::uint64_t word(std::size_t bytes) {
    std::uint64_t value = 0;
    std::string_view const digits = take(bytes);
    for (std::size_t i = bytes; i > 0; --i)
      value = value << 8U | static_cast<std::uint8_t>(digits[i - 1]);
    return value;
  }
  std::string line() {
    std::size_t const end = left_.find('\n');
    FUZZ_EXPECT(end != std::string_view::npos);
    std::string text(take(end));
    take(1);
    return text;
  }

  void push(Value value) { stack_.push_back(std::move(value)); }
  Value& top() {
    FUZZ_EXPECT(stack_.size() > (marks_.empty() ? 0 : marks_.back()));
    return stack_.back();
  }
  Value pop() {
    Value value = std::move(top());
    stack_.pop_back();
    return value;
  }
  void drop(std::size_t count) {
    for (; count > 0; --count) pop();
  }
  std::size_t above_mark() {
    FUZZ_EXPECT(!marks_.empty());
    std::size_t const count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }
  void make_tuple(std::size_t count) {
    FUZZ_EXPECT(stack_.size() >= count);
    Value tuple{.kind = Value::Kind::tuple};
    // Only the arguments of a few functions matter; deep or long tuples would cost time.
    for (std::size_t i = stack_.size() - count; i < stack_.size() && count <= 4; ++i)
      tuple.items.push_back(stack_[i].kind != Value::Kind::tuple ? stack_[i] : Value{});
    stack_.resize(stack_.size() - count);
    push(std::move(tuple));
  }
  void push_name() {
    Value value{.kind = Value::Kind::name};
    value.module = line();
    value.attribute = line();
    if (!is_maker(value.module, value.attribute) && !is_type(value.module, value.attribute))
      found_ = value.module + "." + value.attribute;
    if (value.attribute.find('.') != std::string::npos)
      found_ = value.module + "." + value.attribute;  // whatever the module has imported
    push(std::move(value));
  }

  void call() {
    Value const arguments = pop();
    Value const callable = pop();
    push({});
    if (callable.kind != Value::Kind::name) {
      found_ = "a computed function";
      return;
    }
    std::string const name = callable.module + "." + callable.attribute;
    bool const plain_type = is_type(callable.module, callable.attribute) &&
                            callable.module.find("builtin") != std::string::npos;
    if (!is_maker(callable.module, callable.attribute) && !plain_type) found_ = name;
    if (name == "_codecs.encode" && !is_text(arguments, 1, {"latin1", "latin-1"}))
      found_ = name + " by another codec";
    if (name == "torch._tensor._rebuild_from_type_v2" && !is_plain_tensor(arguments))
      found_ = name + " of another function";
  }

  static bool is_text(Value const& arguments, std::size_t at,
                      std::initializer_list<std::string_view> wanted) {
    return at < arguments.items.size() &&
           std::ranges::find(wanted, arguments.items[at].text) != wanted.end();
  }
  /// It calls its first argument.
  static bool is_plain_tensor(Value const& arguments) {
    if (arguments.items.size() != 4) return false;
    Value const& function = arguments.items[0];
    bool const rebuilds =
        function.attribute == "_rebuild_tensor_v2" || function.attribute == "_rebuild_tensor_v3";
    return function.module == "torch._utils" && rebuilds && arguments.items[1].module == "torch" &&
           arguments.items[1].attribute == "Tensor";
  }

  std::string_view left_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Value> memo_;
  std::string found_;
};

}  // namespace

std::string harmful_name(std::string_view pickle) { return Reader(pickle).run(); }

}  // namespace reshard::fuzz
