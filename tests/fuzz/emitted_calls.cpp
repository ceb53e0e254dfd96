// A second opinion on pickles: it shares no code, no opcode table and no list with the program.

#include "tests/fuzz/emitted_calls.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

namespace reshard::fuzz {
namespace {

/// Python's library, as far as attacks on pickles are known to use it, and the installers: whatever is called of these is refused, but for `values`.
constexpr std::array<std::string_view, 84> guarded = {"__builtin__", "__main__",    "_codecs",      "_ctypes",
                                                      "_io",         "_operator",   "_pickle",      "_posixsubprocess",
                                                      "_socket",     "_thread",     "aifc",         "ast",
                                                      "asyncio",     "atexit",      "bdb",          "builtins",
                                                      "cProfile",    "cgitb",       "code",         "codecs",
                                                      "codeop",      "collections", "commands",     "compileall",
                                                      "copy",        "copy_reg",    "copyreg",      "ctypes",
                                                      "dbm",         "decimal",     "dis",          "distutils",
                                                      "doctest",     "enum",        "fileinput",    "fractions",
                                                      "ftplib",      "functools",   "gc",           "glob",
                                                      "http",        "idlelib",     "imaplib",      "imp",
                                                      "importlib",   "inspect",     "io",           "linecache",
                                                      "logging",     "marshal",     "modulefinder", "multiprocessing",
                                                      "nt",          "operator",    "os",           "pathlib",
                                                      "pdb",         "pickle",      "pip",          "pkgutil",
                                                      "platform",    "posix",       "posixpath",    "profile",
                                                      "pty",         "pydoc",       "runpy",        "setuptools",
                                                      "shelve",      "shutil",      "signal",       "smtplib",
                                                      "socket",      "ssl",         "subprocess",   "sys",
                                                      "tempfile",    "threading",   "timeit",       "trace",
                                                      "types",       "urllib",      "webbrowser",   "zipimport"};

/// Of guarded modules, PyTorch and NumPy: what makes a value and does nothing else.
constexpr std::array<std::string_view, 79> values = {"__builtin__.bool",
                                                     "__builtin__.bytearray",
                                                     "__builtin__.bytes",
                                                     "__builtin__.complex",
                                                     "__builtin__.dict",
                                                     "__builtin__.float",
                                                     "__builtin__.frozenset",
                                                     "__builtin__.int",
                                                     "__builtin__.list",
                                                     "__builtin__.object",
                                                     "__builtin__.range",
                                                     "__builtin__.set",
                                                     "__builtin__.slice",
                                                     "__builtin__.str",
                                                     "__builtin__.tuple",
                                                     "__builtin__.xrange",
                                                     "builtins.bool",
                                                     "builtins.bytearray",
                                                     "builtins.bytes",
                                                     "builtins.complex",
                                                     "builtins.dict",
                                                     "builtins.float",
                                                     "builtins.frozenset",
                                                     "builtins.int",
                                                     "builtins.list",
                                                     "builtins.object",
                                                     "builtins.range",
                                                     "builtins.set",
                                                     "builtins.slice",
                                                     "builtins.str",
                                                     "builtins.tuple",
                                                     "_codecs.encode",
                                                     "_io.BytesIO",
                                                     "_io.StringIO",
                                                     "io.BytesIO",
                                                     "io.StringIO",
                                                     "collections.Counter",
                                                     "collections.OrderedDict",
                                                     "collections.defaultdict",
                                                     "collections.deque",
                                                     "copy_reg._reconstructor",
                                                     "copyreg._reconstructor",
                                                     "decimal.Decimal",
                                                     "fractions.Fraction",
                                                     "pathlib.Path",
                                                     "pathlib.PosixPath",
                                                     "pathlib.PurePath",
                                                     "pathlib.PurePosixPath",
                                                     "pathlib.PureWindowsPath",
                                                     "pathlib.WindowsPath",
                                                     "pathlib._local.Path",
                                                     "pathlib._local.PosixPath",
                                                     "pathlib._local.PurePath",
                                                     "pathlib._local.PurePosixPath",
                                                     "pathlib._local.PureWindowsPath",
                                                     "pathlib._local.WindowsPath",
                                                     "signal.Handlers",
                                                     "signal.Signals",
                                                     "types.SimpleNamespace",
                                                     "numpy._core.multiarray._reconstruct",
                                                     "numpy._core.multiarray.scalar",
                                                     "numpy._core.numeric._frombuffer",
                                                     "numpy.core.multiarray._reconstruct",
                                                     "numpy.core.multiarray.scalar",
                                                     "numpy.core.numeric._frombuffer",
                                                     "numpy.dtype",
                                                     "numpy.ndarray",
                                                     "torch.Generator",
                                                     "torch.Size",
                                                     "torch.device",
                                                     "torch._C.Generator",
                                                     "torch._tensor._rebuild_from_type_v2",
                                                     "torch._utils._rebuild_parameter",
                                                     "torch._utils._rebuild_parameter_with_state",
                                                     "torch._utils._rebuild_tensor_v2",
                                                     "torch._utils._rebuild_tensor_v3",
                                                     "torch.serialization._get_layout",
                                                     "torch.storage.UntypedStorage",
                                                     "torch.Tensor"};

bool contains(auto const& list, std::string_view word) { return std::find(list.begin(), list.end(), word) != list.end(); }

/// numpy.dtypes.Float32DType and datetime.datetime: families in which every public class is a value.
bool is_class_of_values(std::string_view module, std::string_view name) {
  return (module == "numpy.dtypes" || module == "datetime") && name.find('.') == std::string_view::npos && !name.starts_with('_');
}

/// `name` may have dots: an attribute of an attribute.
bool is_harmful(std::string_view module, std::string_view name) {
  std::string_view const package = module.substr(0, module.find('.'));
  // On the way to an attribute of a class nobody passes a module; os reached through pathlib is os.
  for (std::size_t begin = 0, dot = name.find('.'); dot != std::string_view::npos; begin = dot + 1, dot = name.find('.', begin))
    if (contains(guarded, name.substr(begin, dot - begin))) return true;
  if (package != "torch" && package != "numpy" && !contains(guarded, package) && package != "datetime") return false;
  return !contains(values, std::string(module) + '.' + std::string(name)) && !is_class_of_values(module, name);
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
    enum class Kind { plain, text, tuple, name, mark } kind = Kind::plain;
    std::string text{};          ///< text
    std::string module{};        ///< name: of a class or a function, which may be called
    std::string attribute{};     ///< name: with dots where it was reached through others
    std::vector<Value> items{};  ///< tuple: those that are names or texts matter
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
      default: std::fprintf(stderr, "opcode 0x%02x\n", op); FUZZ_EXPECT(!"an opcode that the emitter does not write");
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
    for (std::size_t i = bytes; i > 0; --i) value = value << 8U | static_cast<std::uint8_t>(digits[i - 1]);
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
    // Only getattr's arguments matter; deep or long tuples would cost time.
    for (std::size_t i = stack_.size() - count; i < stack_.size(); ++i)
      tuple.items.push_back(count == 2 && stack_[i].kind != Value::Kind::tuple ? stack_[i] : Value{});
    stack_.resize(stack_.size() - count);
    push(std::move(tuple));
  }
  void push_name() {
    Value value{.kind = Value::Kind::name};
    value.module = line();
    value.attribute = line();
    push(std::move(value));
  }

  void call() {
    Value const arguments = pop();
    Value const callable = pop();
    push({});
    if (callable.kind != Value::Kind::name) {
      found_ = "a computed function";
    } else if ((callable.module == "__builtin__" || callable.module == "builtins") && callable.attribute == "getattr") {
      attribute_of(arguments);
    } else if (is_harmful(callable.module, callable.attribute)) {
      found_ = callable.module + "." + callable.attribute;
    }
  }

  void attribute_of(Value const& arguments) {
    bool const plain = arguments.items.size() == 2 && arguments.items[0].kind == Value::Kind::name && arguments.items[1].kind == Value::Kind::text;
    if (!plain) {
      found_ = "getattr of a computed value";
      return;
    }
    Value& result = stack_.back();
    result = arguments.items[0];
    result.attribute += "." + arguments.items[1].text;
  }

  std::string_view left_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Value> memo_;
  std::string found_;
};

}  // namespace

std::string harmful_call(std::string_view pickle) { return Reader(pickle).run(); }

}  // namespace reshard::fuzz
