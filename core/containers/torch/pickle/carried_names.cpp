#include "core/containers/torch/pickle/carried_names.hpp"

#include <algorithm>
#include <array>

namespace reshard::pickle {
namespace {

/// The names of a module that may be in a pickle that we write, each member a list of words.
struct Module {
  std::string_view name;
  std::string_view values;      ///< named only
  std::string_view calls = "";  ///< called, too: these only make a value
  std::string_view enums =
      "";  ///< called with a value; a state would change the member for the whole process
};

constexpr std::string_view plain_types = "bool bytes dict float int list object str tuple";
constexpr std::string_view plain_makers = "bytearray complex frozenset range set slice";
constexpr std::string_view arrays = "_reconstruct scalar";
constexpr std::string_view paths =
    "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath";
constexpr std::string_view attention = "AttnMaskType AttnType LayerType ModelType";
constexpr std::string_view storages =
    "BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage DoubleStorage FloatStorage HalfStorage IntStorage "
    "LongStorage ShortStorage";

constexpr std::string_view torchao_tensors =
    "Float8Tensor Int4PlainInt32Tensor Int4PreshuffledTensor Int4Tensor Int4TilePackedTo4dTensor "
    "Int8Tensor IntxOpaqueTensor IntxUnpackedToInt8Tensor";

/// Exact names: those of Megatron's `args`, common state and objects, those of torch.save around
/// tensors, and plain values.
constexpr std::array modules = {
    Module{"__builtin__", plain_types, plain_makers},
    Module{"__builtin__", "long unicode", "xrange"},
    Module{"_codecs", "", "encode"},
    Module{"_io", "", "BytesIO StringIO"},
    Module{"argparse", "", "Namespace"},
    Module{"builtins", plain_types, plain_makers},
    Module{"collections", "", "Counter OrderedDict defaultdict deque"},
    Module{"copy_reg", "", "_reconstructor"},
    Module{"copyreg", "", "_reconstructor"},
    Module{"datetime", "", "date datetime time timedelta timezone"},
    Module{"decimal", "", "Decimal"},
    Module{"io", "", "BytesIO StringIO"},
    Module{"megatron.core.enums", "", "", "Fp4Recipe Fp8Recipe ModelType"},
    Module{"megatron.core.dist_checkpointing.validation", "", "", "StrictHandling"},
    Module{"megatron.core.optimizer.optimizer_config", "", "OptimizerConfig"},
    Module{"megatron.core.rerun_state_machine", "", "Call Caller",
           "RerunDiagnostic RerunMode RerunState RerunValidationStatus"},
    Module{"megatron.core.transformer.enums", "", "", attention},
    Module{"megatron.core.transformer.enums", "", "",
           "AttnBackend CudaGraphModule CudaGraphScope InferenceCudaGraphScope"},
    Module{"megatron.legacy.model.enums", "", "", attention},
    Module{"megatron.model.enums", "", "", attention},
    Module{
        "numpy",
        "bool bool_ complex128 complex64 float16 float32 float64 int16 int32 int64 int8 ndarray uint16 uint32 uint64 uint8",
        "dtype"},
    Module{"numpy._core.multiarray", "", arrays},
    Module{"numpy.core.multiarray", "", arrays},
    Module{"pathlib", "", paths},
    Module{"pathlib._local", "", paths},
    Module{"signal",
           "SIGABRT SIGALRM SIGCHLD SIGCONT SIGHUP SIGINT SIGQUIT SIGTERM SIGUSR1 SIGUSR2", "",
           "Handlers Signals"},
    Module{"torch", storages},
    Module{
        "torch",
        "Tensor UntypedStorage bfloat16 bool complex128 complex32 complex64 float16 float32 float64 int16 int32 int64 int8 uint8",
        "Size device"},
    Module{
        "torch",
        "float4_e2m1fn_x2 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu uint16 uint32 uint64"},
    Module{"torch._C", "", "Generator"},
    Module{"torch._tensor", "", "_rebuild_from_type_v2"},
    Module{
        "torch._utils", "_rebuild_wrapper_subclass",
        "_rebuild_parameter _rebuild_parameter_with_state _rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3"},
    Module{"torch.cuda", storages},
    Module{"torch.serialization", "", "_get_layout"},
    Module{"torch.storage", "UntypedStorage _UntypedStorage"},
    Module{"torch.torch_version", "", "TorchVersion"},
    // torchao registers these itself, for torch.load with weights_only.
    Module{"torchao.float8.inference", "", "Float8MMConfig"},
    Module{"torchao.quantization", torchao_tensors},
    Module{"torchao.quantization.granularity", "", "PerBlock PerRow PerTensor"},
    Module{"torchao.quantization.quant_primitives", "", "", "MappingType ZeroPointDomain"},
    Module{"torchao.quantization.quantize_.common.kernel_preference", "", "", "KernelPreference"},
    Module{"torchao.quantization.quantize_.workflows.float8.float8_packing_format", "", "",
           "Float8PackingFormat"},
    Module{"torchao.quantization.quantize_.workflows.float8.float8_tensor", "",
           "QuantizeTensorToFloat8Kwargs"},
    Module{"torchao.quantization.quantize_.workflows.int8.int8_tensor", "",
           "QuantizeTensorToInt8Kwargs"},
    Module{"types", "", "SimpleNamespace"},
};

/// Packages of which only the names above are ever written: Python's library, PyTorch and NumPy,
/// and some that run their arguments.
constexpr std::string_view guarded_packages =
    "abc aifc antigravity argparse array ast asynchat asyncio asyncore atexit audioop base64 bdb binascii bisect builtins bz2 cPickle "
    "cProfile calendar cgi cgitb chunk cmath cmd code codecs codeop collections colorsys commands compileall concurrent configparser "
    "contextlib contextvars copy copy_reg copyreg crypt csv ctypes curses dataclasses datetime dbm decimal difflib dis distutils doctest "
    "email encodings ensurepip enum errno exceptions faulthandler fcntl filecmp fileinput fnmatch fractions ftplib functools gc genericpath "
    "getopt getpass gettext glob graphlib grp gzip hashlib heapq hmac html http idlelib imaplib imghdr imp importlib inspect io ipaddress "
    "itertools json keyword lib2to3 linecache locale logging lzma mailbox mailcap marshal math mimetypes mmap module.name modulefinder "
    "msilib msvcrt multiprocessing netrc nis nntplib nt ntpath nturl2path numbers opcode operator optparse os ossaudiodev pathlib pdb pickle "
    "pickletools pip pipes pkg_resources pkgutil platform plistlib popen2 poplib posix posixpath pprint profile pstats pty pwd py_compile "
    "pyclbr pydoc pydoc_data pyexpat queue quopri random re readline reprlib resource rlcompleter runpy sched secrets select selectors "
    "setuptools shelve shlex shutil signal site smtpd smtplib sndhdr socket socketserver spwd sqlite3 sre_compile sre_constants sre_parse "
    "ssl stat statistics string stringprep struct subprocess sunau symtable sys sysconfig syslog tabnanny tarfile telnetlib tempfile termios "
    "test textwrap this threading time timeit tkinter token tokenize tomllib trace traceback tracemalloc tty turtle turtledemo types typing "
    "unicodedata unittest urllib uu uuid venv warnings wave weakref webbrowser winreg winsound wsgiref xdrlib xml xmlrpc zipapp zipfile "
    "zipimport zlib zoneinfo "
    "torch numpy cffi cloudpickle dill joblib jsonpickle multiprocess numexpr pathos pip pkg_resources setuptools sympy";

bool has_word(std::string_view words, std::string_view word) {
  if (word.empty() || word.find(' ') != std::string_view::npos) return false;
  for (std::size_t at = words.find(word); at != std::string_view::npos;
       at = words.find(word, at + 1)) {
    std::size_t const end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' '))
      return true;
  }
  return false;
}

}  // namespace

Permission permission_of(std::string_view module, std::string_view name) {
  for (Module const& known : modules) {
    if (known.name != module) continue;
    if (has_word(known.calls, name)) return Permission::call;
    if (has_word(known.enums, name)) return Permission::enumeration;
    if (has_word(known.values, name)) return Permission::value;
  }
  std::string_view const package = module.substr(0, module.find('.'));
  bool const guarded = package.starts_with('_') || has_word(guarded_packages, package);
  // A dotted name reaches through a module to whatever that module has imported.
  return guarded || name.find('.') != std::string_view::npos ? Permission::none
                                                             : Permission::foreign;
}

}  // namespace reshard::pickle
