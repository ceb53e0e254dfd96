#include "tests/fuzz/pickle_mutator.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "tests/support/dcp_pickle.hpp"

namespace reshard::fuzz {
namespace {

using namespace std::string_literals;

/// How many bytes belong to the operand of an opcode; `length` ones begin with the number of bytes
/// that follow, `lines` end with so many newlines.
struct Shape {
  char const* opcodes;
  std::size_t fixed;
  std::size_t length;
  std::size_t lines;
};
constexpr Shape shapes[] = {{"\x80Khq\x82", 1, 0, 0},
                            {"M\x83", 2, 0, 0},
                            {"Jjr\x84", 4, 0, 0},
                            {"G\x95", 8, 0, 0},
                            {"U\x8c\x8a"
                             "C",
                             0, 1, 0},
                            {"XTB\x8b", 0, 4, 0},
                            {"\x8d\x8e\x96", 0, 8, 0},
                            {"FILSVPgp", 0, 0, 1},
                            {"ci", 0, 0, 2}};

std::size_t operand_bytes(std::string_view behind, std::uint8_t opcode) {
  if (opcode == 0) return 0;
  for (Shape const& shape : shapes) {
    if (std::strchr(shape.opcodes, static_cast<char>(opcode)) == nullptr) continue;
    std::uint64_t length = 0;
    for (std::size_t i = std::min(shape.length, behind.size()); i > 0; --i)
      length = length << 8U | static_cast<std::uint8_t>(behind[i - 1]);
    std::size_t bytes = shape.fixed + shape.length;
    for (std::size_t line = 0; line < shape.lines; ++line) {
      std::size_t const end = behind.find('\n', bytes);
      bytes = end == std::string_view::npos ? behind.size() : end + 1;
    }
    return bytes <= behind.size() && length <= behind.size() - bytes ? bytes + length
                                                                     : behind.size();
  }
  return 0;
}

std::string name(std::string_view module, std::string_view attribute) {
  return fmt::format("c{}\n{}\n", module, attribute);
}

/// Functions that an attack calls, ways to reach them, and those that the reader knows.
std::vector<std::string> const& names() {
  static std::vector<std::string> const all = [] {
    std::vector<std::string> made;
    constexpr std::pair<std::string_view, std::string_view> pairs[] = {
        {"os", "system"},
        {"posix", "system"},
        {"nt", "system"},
        {"pathlib", "os.system"},
        {"pathlib._local", "os.system"},
        {"pathlib", "io.open"},
        {"pathlib", "PosixPath"},
        {"pathlib", "Path.unlink"},
        {"pathlib", "Path.write_text"},
        {"datetime", "sys.modules.clear"},
        {"datetime", "datetime"},
        {"builtins", "eval"},
        {"builtins", "getattr"},
        {"__builtin__", "getattr"},
        {"__builtin__", "exec"},
        {"builtins", "__import__"},
        {"subprocess", "Popen"},
        {"functools", "partial"},
        {"operator", "methodcaller"},
        {"importlib", "import_module"},
        {"torch", "load"},
        {"torch", "os.system"},
        {"torch", "hub.load"},
        {"torch._tensor", "_rebuild_from_type_v2"},
        {"torch._utils", "_rebuild_tensor_v2"},
        {"torch._utils", "_rebuild_tensor_v3"},
        {"torch._utils", "_rebuild_parameter"},
        {"torch._utils", "_rebuild_parameter_with_state"},
        {"torch.storage", "UntypedStorage"},
        {"torch", "FloatStorage"},
        {"torch", "BFloat16Storage"},
        {"torch", "Tensor"},
        {"torch", "Size"},
        {"torch", "device"},
        {"torch", "bfloat16"},
        {"torch", "float8_e4m3fn"},
        {"torch.serialization", "_get_layout"},
        {"_codecs", "encode"},
        {"codecs", "encode"},
        {"__builtin__", "set"},
        {"builtins", "frozenset"},
        {"__builtin__", "bytearray"},
        {"__builtin__", "bytes"},
        {"builtins", "dict"},
        {"collections", "OrderedDict"},
        {"collections", "defaultdict"},
        {"collections", "namedtuple"},
        {"argparse", "Namespace"},
        {"argparse", "_sys.exit"},
        {"types", "SimpleNamespace"},
        {"types", "FunctionType"},
        {"copyreg", "_reconstructor"},
        {"copy_reg", "_reconstructor"},
        {"copyreg", "__newobj__"},
        {"_io", "BytesIO"},
        {"_io", "open"},
        {"io", "BytesIO"},
        {"numpy", "dtype"},
        {"numpy", "ndarray"},
        {"numpy.core.multiarray", "_reconstruct"},
        {"numpy._core.multiarray", "scalar"},
        {"numpy.testing._private.utils", "runstring"},
        {"numpy.dtypes", "Float32DType"},
        {"signal", "Signals"},
        {"signal", "raise_signal"},
        {"uuid", "os.system"},
        {"uuid", "UUID"},
        {"fractions", "Fraction"},
        {"decimal", "Decimal"},
        {"enum", "sys.exit"},
        {"megatron.core.transformer.enums", "AttnBackend"},
        {"megatron.core.transformer.enums", "AttnBackend.flash"},
        {"our_framework", "Settings"},
        {"our_framework", "os.system"},
        {"torch.distributed.checkpoint.metadata", "Metadata"},
        {"torch.distributed.checkpoint.metadata", "TensorStorageMetadata"},
        {"torch.distributed.checkpoint.metadata", "TensorProperties"},
        {"torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"},
        {"torch.distributed.checkpoint.metadata", "BytesStorageMetadata"},
        {"torch.distributed.checkpoint.metadata", "MetadataIndex"},
        {"torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"},
        {"torch.distributed.checkpoint.filesystem", "_StorageInfo"}};
    for (auto const& [module, attribute] : pairs) {
      made.push_back(name(module, attribute));
      made.push_back(raw::global(module, attribute));
    }
    return made;
  }();
  return all;
}

/// Opcodes, values, and whole calls.
std::vector<std::string> const& pieces() {
  static std::vector<std::string> const all = [] {
    std::vector<std::string> made = {
        "N",
        "\x88",
        "\x89",
        "K\0"s,
        "K\1",
        "K\2",
        "M\xff\xff",
        "J\xff\xff\xff\xff",
        "J\0\0\0\x80"s,
        "\x8a\0"s,
        "\x8a\x01\xff",
        "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
        "\x8a\x08\0\0\0\0\0\0\0\x80"s,
        "\x8a\x09\0\0\0\0\0\0\0\x80\0"s,
        "\x8b\xff\xff\xff\x7f",
        "G\0\0\0\0\0\0\0\0"s,
        "G\x7f\xf8\0\0\0\0\0\0"s,
        "F1e400\n",
        "F-0.5\n",
        "I01\n",
        "I7\n",
        "L7L\n",
        "S'a'\n",
        "Va\n",
        "U\1z",
        "C\1z",
        "T\1\0\0\0z"s,
        "]",
        "}",
        ")",
        "(",
        "t",
        "l",
        "d",
        "e",
        "u",
        "a",
        "s",
        "\x85",
        "\x86",
        "\x87",
        "\x8f",
        "\x90",
        "\x91",
        "0",
        "1",
        "2",
        "R",
        "b",
        "o",
        "Q",
        "\x81",
        "\x92",
        "\x93",
        "\x94",
        "q\0"s,
        "q\1",
        "q\2",
        "q\3",
        "h\0"s,
        "h\1",
        "h\2",
        "h\3",
        "r\0\1\0\0"s,
        "j\0\1\0\0"s,
        "p5\n",
        "g5\n",
        "p\n",
        "ios\nsystem\n",
        "\x80\2",
        "\x80\6",
        "\x95\0\0\0\0\0\0\0\0"s,
        "\x82\1",
        "\x97",
        "\x98",
        "P0\n",
        ".",
        "](",
        "}(",
        "(e",
        "(u",
        raw::text(""),
        raw::text("w"),
        raw::text("latin1"),
        raw::text("a.b"),
        raw::text("os.system"),
        raw::text("__new__"),
        raw::text("storage"),
        raw::text("\xc3\xbf"),
        raw::text(std::string(40, 'k')),
        "\x8e\1\0\0\0\0\0\0\0z"s,
        "\x96\1\0\0\0\0\0\0\0z"s,
        "\x8d\1\0\0\0\0\0\0\0z"s,
        raw::size({}),
        raw::size({2, 3}),
        raw::size({0, 0}),
        raw::size({INT64_MAX, 2}),
        raw::text("offsets"),
        raw::text("args"),
        raw::text("model"),
        raw::text("tensor_model_parallel_size"),
        raw::text("pipeline_model_parallel_layout"),
        raw::text("Et*2|tL"),
        raw::text("num_layers"),
        raw::place("__0_0.distcp", 0, 5),
        raw::index("w", raw::size({0, 0})),
        raw::bytes(),
        pickled_storage({}),
        pickled_tensor({}),
        pickled_tensor({.storage_class = "torch\nBFloat16Storage", .shape = {4}, .strides = {1}}),
        pickled_tensor({.offset = -1}),
        pickled_tensor({.shape = {INT64_MAX, 4}, .strides = {INT64_MAX, 1}}),
        pickled_tensor({.strides = {0, 0}})};
    for (std::size_t i = 0; i < names().size(); i += 3)
      made.push_back(names()[i] + raw::text("id") + "\x85R");
    for (std::string_view const type :
         {"torch.Tensor", "torch.nn.parameter.Buffer", "our_framework.Quantised"})
      made.push_back(name("torch._tensor", "_rebuild_from_type_v2") + "(" +
                     name("torch._utils", "_rebuild_tensor_v2") +
                     name(type.substr(0, type.rfind('.')), type.substr(type.rfind('.') + 1)) + "(" +
                     pickled_storage({}) + "K\0K\4\x85K\1\x85\x89"s +
                     name("collections", "OrderedDict") + ")Rt}tR");
    made.push_back(name("torch._tensor", "_rebuild_from_type_v2") + "(" + name("os", "system") +
                   name("torch", "Tensor") + raw::text("id") + "\x85}tR");
    made.push_back(name("__builtin__", "getattr") + name("pathlib", "os") + raw::text("system") +
                   "\x86R" + raw::text("id") + "\x85R");
    return made;
  }();
  return all;
}

class Mutation {
 public:
  Mutation(std::string_view pickle, std::minstd_rand& random)
      : parts_(split_pickle(pickle)), random_(random) {}

  void step() {
    switch (below(9)) {
      case 0: return erase();
      case 1: return insert(any_of(pieces()));
      case 2: return insert(any_of(names()));
      case 3: return replace(any_of(pieces()));
      case 4: return replace_name();
      case 5: return repeat();
      case 6: return exchange();
      case 7: return change_operand();
      default: return cut_or_call();
    }
  }

  std::string take() const {
    std::string bytes;
    for (std::string const& part : parts_) bytes += part;
    return bytes;
  }

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  std::string const& any_of(std::vector<std::string> const& list) {
    return list[below(list.size())];
  }
  auto place(std::size_t at) { return parts_.begin() + static_cast<std::ptrdiff_t>(at); }
  /// STOP and PROTO seldom move.
  std::size_t inner() {
    return parts_.size() < 3 ? below(parts_.size()) : 1 + below(parts_.size() - 2);
  }

  void insert(std::string piece) {
    parts_.insert(place(std::min(inner(), parts_.size())), std::move(piece));
  }
  void erase() {
    if (parts_.size() > 1) parts_.erase(place(inner()));
  }
  void replace(std::string piece) {
    if (!parts_.empty()) parts_[inner()] = std::move(piece);
  }
  void replace_name() {
    for (std::size_t tries = 0; tries < 16 && !parts_.empty(); ++tries) {
      std::string& part = parts_[inner()];
      if (part.starts_with('c') || part.starts_with('\x93')) {
        part = part.starts_with('c') ? any_of(names()) : "00" + any_of(names());
        return;
      }
    }
    insert(any_of(names()));
  }
  void repeat() {
    if (parts_.empty()) return;
    std::size_t const begin = below(parts_.size());
    std::size_t const count = 1 + below(std::min<std::size_t>(8, parts_.size() - begin));
    std::vector<std::string> const copy(place(begin), place(begin + count));
    parts_.insert(place(inner()), copy.begin(), copy.end());
  }
  void exchange() {
    if (!parts_.empty()) std::swap(parts_[inner()], parts_[inner()]);
  }
  void change_operand() {
    if (parts_.empty()) return;
    std::string& part = parts_[inner()];
    if (part.size() < 2) return;
    std::uint8_t room[256];
    std::size_t const kept = std::min<std::size_t>(part.size() - 1, sizeof room / 2);
    std::memcpy(room, part.data() + 1, kept);
    std::size_t const now = LLVMFuzzerMutate(room, kept, sizeof room);
    part.replace(1, kept, reinterpret_cast<char const*>(room), now);
  }
  void cut_or_call() {
    if (below(4) == 0) {
      parts_.resize(below(parts_.size() + 1));
      parts_.push_back(".");
      return;
    }
    insert(any_of(names()) + any_of(pieces()) + (below(2) == 0 ? "\x85R" : "\x85\x81") +
           (below(3) == 0 ? "}b" : ""));
  }

  std::vector<std::string> parts_;
  std::minstd_rand& random_;
};

}  // namespace

std::vector<std::string> split_pickle(std::string_view pickle) {
  std::vector<std::string> parts;
  while (!pickle.empty()) {
    std::size_t const size =
        1 + operand_bytes(pickle.substr(1), static_cast<std::uint8_t>(pickle.front()));
    parts.emplace_back(pickle.substr(0, size));
    pickle.remove_prefix(size);
  }
  return parts;
}

std::string mutated_pickle(std::string_view pickle, std::minstd_rand& random) {
  Mutation mutation(pickle, random);
  for (std::size_t steps = 1 + random() % 5; steps > 0; --steps) mutation.step();
  return mutation.take();
}

std::size_t mutate_pickle(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  std::minstd_rand random(seed);
  if (random() % 8 == 0) return LLVMFuzzerMutate(data, size, most);
  std::string const made = mutated_pickle({reinterpret_cast<char const*>(data), size}, random);
  std::size_t const kept = std::min(made.size(), most);
  std::memcpy(data, made.data(), kept);
  return kept;
}

}  // namespace reshard::fuzz
