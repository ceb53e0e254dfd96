#include "core/formats/torch_zip/carried_calls.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace reshard::pickle {
namespace {

/// Packages whose members are refused unless listed below, sorted: Python's library, PyTorch, NumPy, installers.
constexpr std::array<std::string_view, 247> guarded_packages = {
    "__builtin__", "__builtins__", "_codecs", "_ctypes", "_frozen_importlib", "_frozen_importlib_external", "_imp", "_io", "_operator",
    "_osx_support", "_pickle", "_posixsubprocess", "_pyio", "_signal", "_sitebuiltins", "_socket", "_ssl", "_thread", "_winapi", "abc", "aifc",
    "antigravity", "argparse", "array", "ast", "asynchat", "asyncio", "asyncore", "atexit", "audioop", "base64", "bdb", "binascii", "bisect",
    "builtins", "bz2", "cPickle", "cProfile", "calendar", "cgi", "cgitb", "chunk", "cmath", "cmd", "code", "codecs", "codeop", "collections",
    "colorsys", "commands", "compileall", "concurrent", "configparser", "contextlib", "contextvars", "copy", "copy_reg", "copyreg", "crypt", "csv",
    "ctypes", "curses", "dataclasses", "datetime", "dbm", "decimal", "difflib", "dis", "distutils", "doctest", "email", "encodings", "ensurepip",
    "enum", "errno", "exceptions", "faulthandler", "fcntl", "filecmp", "fileinput", "fnmatch", "fractions", "ftplib", "functools", "gc",
    "genericpath", "getopt", "getpass", "gettext", "glob", "graphlib", "grp", "gzip", "hashlib", "heapq", "hmac", "html", "http", "idlelib",
    "imaplib", "imghdr", "imp", "importlib", "inspect", "io", "ipaddress", "itertools", "json", "keyword", "lib2to3", "linecache", "locale",
    "logging", "lzma", "mailbox", "mailcap", "marshal", "math", "mimetypes", "mmap", "modulefinder", "msilib", "msvcrt", "multiprocessing",
    "netrc", "nis", "nntplib", "nt", "ntpath", "nturl2path", "numbers", "numpy", "opcode", "operator", "optparse", "os", "ossaudiodev", "pathlib",
    "pdb", "pickle", "pickletools", "pip", "pipes", "pkg_resources", "pkgutil", "platform", "plistlib", "popen2", "poplib", "posix", "posixpath",
    "pprint", "profile", "pstats", "pty", "pwd", "py_compile", "pyclbr", "pydoc", "pydoc_data", "pyexpat", "queue", "quopri", "random", "re",
    "readline", "reprlib", "resource", "rlcompleter", "runpy", "sched", "secrets", "select", "selectors", "setuptools", "shelve", "shlex",
    "shutil", "signal", "site", "smtpd", "smtplib", "sndhdr", "socket", "socketserver", "spwd", "sqlite3", "sre_compile", "sre_constants",
    "sre_parse", "ssl", "stat", "statistics", "string", "stringprep", "struct", "subprocess", "sunau", "symtable", "sys", "sysconfig", "syslog",
    "tabnanny", "tarfile", "telnetlib", "tempfile", "termios", "test", "textwrap", "this", "threading", "time", "timeit", "tkinter", "token",
    "tokenize", "tomllib", "torch", "trace", "traceback", "tracemalloc", "tty", "turtle", "turtledemo", "types", "typing", "unicodedata",
    "unittest", "urllib", "uu", "uuid", "venv", "warnings", "wave", "weakref", "webbrowser", "winreg", "winsound", "wsgiref", "xdrlib", "xml",
    "xmlrpc", "zipapp", "zipfile", "zipimport", "zlib", "zoneinfo"};

/// "module.name" of what only builds values; a '*' at the end stands for every name.
constexpr std::array<std::string_view, 62> harmless = {
    "__builtin__.bytearray", "__builtin__.complex", "__builtin__.dict", "__builtin__.frozenset", "__builtin__.int", "__builtin__.list",
    "__builtin__.object", "__builtin__.range", "__builtin__.set", "__builtin__.slice", "__builtin__.tuple", "__builtin__.xrange",
    "_codecs.encode", "_io.BytesIO", "_io.StringIO", "argparse.Namespace", "builtins.bytearray", "builtins.bytes", "builtins.complex",
    "builtins.dict", "builtins.float", "builtins.frozenset", "builtins.int", "builtins.list", "builtins.object", "builtins.range", "builtins.set",
    "builtins.slice", "builtins.str", "builtins.tuple", "collections.Counter", "collections.OrderedDict", "collections.defaultdict",
    "collections.deque", "copy_reg._reconstructor", "copyreg._reconstructor", "datetime.*", "decimal.Decimal", "fractions.Fraction", "io.BytesIO",
    "numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar",
    "numpy._core.numeric._frombuffer", "numpy.core.numeric._frombuffer", "numpy.dtype", "numpy.dtypes.*", "numpy.ndarray", "pathlib.*",
    "pathlib._local.*", "signal.Signals", "signal.Handlers", "torch.Size", "torch._C.Generator", "torch._tensor._rebuild_from_type_v2",
    "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state", "torch._utils._rebuild_tensor_v2", "torch.device",
    "types.SimpleNamespace", "uuid.UUID"};

bool is_harmless(std::string_view module, std::string_view name) {
  return std::any_of(harmless.begin(), harmless.end(), [&](std::string_view known) {
    std::size_t const dot = known.rfind('.');
    return known.substr(0, dot) == module && (known.substr(dot + 1) == "*" || known.substr(dot + 1) == name);
  });
}

bool may_carry(std::string_view module, std::string_view name) {
  if (is_harmless(module, name)) return true;
  std::string_view const package = module.substr(0, module.find('.'));
  return !std::binary_search(guarded_packages.begin(), guarded_packages.end(), package);
}

}  // namespace

std::string call_not_to_carry(Document const& document, NodeId id) {
  std::vector<bool> seen(document.nodes.size(), false);
  std::vector<NodeId> open{id};
  while (!open.empty()) {
    NodeId const at = open.back();
    open.pop_back();
    if (at == no_node || seen[at]) continue;
    seen[at] = true;
    Node const& node = document.at(at);
    if (node.kind == Kind::reduce) {
      auto const [module, name] = document.class_of(at);
      if (module.empty()) return "a computed function";
      if (!may_carry(module, name)) return fmt::format("{}.{}", module, name);
    }
    open.insert(open.end(), node.items.begin(), node.items.end());
    open.insert(open.end(), node.pairs.begin(), node.pairs.end());
    for (NodeId const next : {node.callable, node.arguments, node.state}) open.push_back(next);
  }
  return {};
}

}  // namespace reshard::pickle
