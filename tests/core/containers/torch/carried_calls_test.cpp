#include "core/containers/torch/pickle/carried_calls.hpp"

#include <gtest/gtest.h>

#include "core/containers/torch/pickle/carried_names.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace reshard::pickle {
namespace {

using namespace std::string_literals;

std::string text_of(NotCarried const& found) {
  return found.foreign ? "foreign " + found.name : found.name;
}

/// What is found in a Namespace with one value.
std::string verdict_on(Document& document, NodeId value) {
  NodeId const state = document.add_dict();
  document.set(state, "value", document.add_list({value}));
  document.root = document.add_object("argparse", "Namespace", state);
  return text_of(not_to_carry(document, document.root));
}

/// module.name() inside it.
std::string verdict(std::string_view module, std::string_view name, bool new_object = false) {
  Document document;
  Node call;
  call.kind = Kind::reduce;
  call.callable = document.add_global(module, name);
  call.arguments = document.add_tuple();
  call.new_object = new_object;
  return verdict_on(document, document.add(std::move(call)));
}

/// module.name inside it, not called.
std::string verdict_on_name(std::string_view module, std::string_view name) {
  Document document;
  return verdict_on(document, document.add_global(module, name));
}

/// What a pickle's opcodes hold, as they would be written again.
std::string verdict_on_opcodes(std::string const& opcodes) {
  Document const document = reshard::parse(opcodes + ".");
  return text_of(not_to_carry(document, document.root));
}

TEST(CarriedCalls, FunctionsThatDoSomethingAreNamed) {
  EXPECT_EQ(verdict("posix", "system"), "posix.system");
  EXPECT_EQ(verdict("os", "system"), "os.system");
  EXPECT_EQ(verdict("builtins", "eval"), "builtins.eval");
  EXPECT_EQ(verdict("builtins", "getattr"), "builtins.getattr");
  EXPECT_EQ(verdict("__builtin__", "exec"), "__builtin__.exec");
  EXPECT_EQ(verdict("subprocess", "Popen", true), "subprocess.Popen");
  EXPECT_EQ(verdict("numpy.testing._private.utils", "runstring"),
            "numpy.testing._private.utils.runstring");
  EXPECT_EQ(verdict("torch", "load"), "torch.load");
  EXPECT_EQ(verdict("torch.storage", "_load_from_bytes"), "torch.storage._load_from_bytes");
  EXPECT_EQ(verdict("importlib", "import_module"), "importlib.import_module");
  EXPECT_EQ(verdict("collections", "namedtuple"), "collections.namedtuple");
  EXPECT_EQ(verdict("functools", "partial"), "functools.partial");
}

TEST(CarriedCalls, PackagesThatRunWhatTheyAreGivenAreRefusedWhateverAJobSays) {
  EXPECT_EQ(verdict("sympy", "sympify"), "sympy.sympify");
  EXPECT_EQ(verdict("sympy.core.sympify", "sympify"), "sympy.core.sympify.sympify");
  EXPECT_EQ(verdict("cloudpickle.cloudpickle", "_make_function"),
            "cloudpickle.cloudpickle._make_function");
  EXPECT_EQ(verdict("dill._dill", "_create_function"), "dill._dill._create_function");
  EXPECT_EQ(verdict("joblib", "load"), "joblib.load");
  EXPECT_EQ(verdict("_private_extension", "run"), "_private_extension.run");
}

TEST(CarriedCalls, ANameWithADotReachesWhatAModuleHasImported) {
  EXPECT_EQ(verdict("pathlib", "os.system"), "pathlib.os.system");
  EXPECT_EQ(verdict("pathlib._local", "os.system"), "pathlib._local.os.system");
  EXPECT_EQ(verdict("datetime", "sys.exit"), "datetime.sys.exit");
  EXPECT_EQ(verdict("numpy.dtypes", "sys.exit"), "numpy.dtypes.sys.exit");
  EXPECT_EQ(verdict("argparse", "Namespace.__init__"), "argparse.Namespace.__init__");
  EXPECT_EQ(verdict("our_framework", "os.system"), "our_framework.os.system");
  EXPECT_EQ(verdict("megatron.core.enums", "enum.sys.exit"), "megatron.core.enums.enum.sys.exit");
}

TEST(CarriedCalls, NoWordOfTheListIsMetByAPartOfIt) {
  for (std::string_view const name : {"Path PosixPath", " ", "", "Pa", "Path ", "PosixPat", "*"})
    EXPECT_NE(verdict("pathlib", name), "") << name;
  EXPECT_EQ(verdict("pathli", "Path"), "foreign pathli.Path");
}

TEST(CarriedCalls, ValuesAndMegatronsOwnClassesPass) {
  EXPECT_EQ(verdict("collections", "OrderedDict"), "");
  EXPECT_EQ(verdict("pathlib", "PosixPath"), "");
  EXPECT_EQ(verdict("pathlib._local", "PosixPath"), "");
  EXPECT_EQ(verdict("signal", "Signals"), "");
  EXPECT_EQ(verdict("_io", "BytesIO"), "");
  EXPECT_EQ(verdict("types", "SimpleNamespace", true), "");
  EXPECT_EQ(verdict("datetime", "timedelta"), "");
  EXPECT_EQ(verdict("torch", "Size"), "");
  EXPECT_EQ(verdict("torch", "device"), "");
  EXPECT_EQ(verdict("megatron.core.transformer.enums", "AttnBackend"), "");
  EXPECT_EQ(verdict("megatron.core.transformer.enums", "CudaGraphScope"), "");
  EXPECT_EQ(verdict("megatron.core.rerun_state_machine", "RerunMode"), "");
  EXPECT_EQ(verdict("megatron.model.enums", "ModelType"), "");
  EXPECT_EQ(verdict_on_name("torch", "bfloat16"), "");
  EXPECT_EQ(verdict_on_name("numpy", "float32"), "");
  EXPECT_EQ(verdict_on_name("builtins", "int"), "");
  EXPECT_EQ(verdict_on_name("signal", "SIGTERM"), "");
}

TEST(CarriedCalls, ClassesOfOtherPackagesAreForeign) {
  EXPECT_EQ(verdict("our_framework.settings", "Settings", true),
            "foreign our_framework.settings.Settings");
  EXPECT_EQ(verdict_on_name("our_framework.settings", "Settings"),
            "foreign our_framework.settings.Settings");
  EXPECT_EQ(verdict("megatron.core.utils", "anything"), "foreign megatron.core.utils.anything");
}

TEST(CarriedCalls, WhatNoJobMayPermitIsReportedBeforeAForeignClass) {
  EXPECT_EQ(verdict_on_opcodes("(cour.code\nSettings\n)Rcos\nsystem\n)Rt"), "os.system");
  EXPECT_EQ(verdict_on_opcodes("(cos\nsystem\n)Rcour.code\nSettings\n)Rt"), "os.system");
}

TEST(CarriedCalls, AFunctionIsRefusedAsAnArgument) {
  EXPECT_EQ(verdict_on_name("os", "system"), "os.system");
  EXPECT_EQ(verdict_on_opcodes("ccollections\ndefaultdict\ncos\nsystem\n\x85R"), "os.system");
  EXPECT_EQ(verdict_on_opcodes("ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R"), "");
  EXPECT_EQ(
      verdict_on_opcodes("ccopy_reg\n_reconstructor\n(cos\n_wrap_close\nc__builtin__\nobject\nNtR"),
      "os._wrap_close");
  EXPECT_EQ(verdict_on_opcodes(
                "ccopy_reg\n_reconstructor\n(cargparse\nNamespace\nc__builtin__\nobject\nNtR"),
            "");
}

TEST(CarriedCalls, WhatIsOnlyAValueIsNotCalled) {
  EXPECT_EQ(verdict("builtins", "int"), "builtins.int");
  EXPECT_EQ(verdict("torch", "FloatStorage"), "torch.FloatStorage");
}

TEST(CarriedCalls, TheStateOfAnEnumMemberIsRefused) {
  EXPECT_EQ(verdict_on_opcodes("csignal\nSignals\nK\x0f\x85R"s), "");
  EXPECT_EQ(verdict_on_opcodes("csignal\nSignals\nK\x0f\x85R}X\1\0\0\0aK\1sb"s), "signal.Signals");
}

TEST(CarriedCalls, TorchsFunctionThatCallsItsArgumentIsRefused) {
  std::string const call = "ctorch._tensor\n_rebuild_from_type_v2\n";
  EXPECT_EQ(verdict_on_opcodes(call + "(cos\nsystem\nc__builtin__\nint\nX\2\0\0\0ls\x85NtR"s),
            "os.system");
  EXPECT_EQ(verdict_on_opcodes(call + "(cpathlib\nPath\nc__builtin__\nint\nX\2\0\0\0ls\x85NtR"s),
            "torch._tensor._rebuild_from_type_v2 of pathlib.Path");
  EXPECT_EQ(verdict_on_opcodes(
                call + "(ctorch._utils\n_rebuild_tensor_v2\nctorch.nn.parameter\nBuffer\n)NtR"s),
            "torch.nn.parameter.Buffer");
}

TEST(CarriedCalls, TensorsOfKnownClassesWithPartsAreCarried) {
  auto const verdict_on = [](std::string const& type, std::string const& first) {
    return verdict_on_opcodes(
        "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\nc" +
        type + "\n(c" + first + "\nctorch\nbfloat16\nt}tR");
  };
  std::string const known = "torchao.quantization\nInt8Tensor";
  EXPECT_EQ(verdict_on(known, known), "");
  EXPECT_EQ(verdict_on("my.module\nFancy", "my.module\nFancy"), "foreign my.module.Fancy");
  EXPECT_EQ(verdict_on(known, "pathlib\nPath"),
            "torch._tensor._rebuild_from_type_v2 of torch._utils._rebuild_wrapper_subclass");
}

TEST(CarriedCalls, ACodecOtherThanLatin1IsRefused) {
  EXPECT_EQ(verdict_on_opcodes("c_codecs\nencode\nX\1\0\0\0aX\3\0\0\0zip\x86R"s),
            "_codecs.encode with unusual arguments");
  EXPECT_EQ(verdict_on_opcodes("c_codecs\nencode\nX\1\0\0\0aX\6\0\0\0latin1\x86R"s), "");
}

TEST(CarriedCalls, NumpysElementsAreNumbersOrText) {
  std::string const state = "(K\3X\1\0\0\0<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"s;
  auto const dtype = [](std::string const& name) {
    return "cnumpy\ndtype\nX\2\0\0\0"s + name + "\x89\x88\x87R";
  };
  EXPECT_EQ(verdict_on_opcodes(dtype("f8") + state), "");
  EXPECT_EQ(verdict_on_opcodes("cnumpy._core.multiarray\nscalar\n" + dtype("i4") + state +
                               "X\4\0\0\0abcd\x86R"s),
            "");
  for (std::string const name : {"O8", "V8", "8f", "f "})
    EXPECT_EQ(verdict_on_opcodes(dtype(name)), "numpy.dtype with unusual arguments") << name;
  std::string const fields = "(K\3X\1\0\0\0<NX\1\0\0\0aNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"s;
  EXPECT_EQ(verdict_on_opcodes(dtype("f8") + fields), "numpy.dtype with unusual arguments");
  std::string const objects = "(K\3X\1\0\0\0|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb"s;
  EXPECT_EQ(verdict_on_opcodes(dtype("f8") + objects), "numpy.dtype with unusual arguments");
}

TEST(CarriedCalls, AFunctionThatIsItselfComputedIsRefused) {
  Document document;
  Node inner;
  inner.kind = Kind::reduce;
  inner.callable = document.add_global("argparse", "Namespace");
  inner.arguments = document.add_tuple();
  Node outer;
  outer.kind = Kind::reduce;
  outer.callable = document.add(std::move(inner));
  outer.arguments = document.add_tuple();
  EXPECT_EQ(text_of(not_to_carry(document, document.add(std::move(outer)))), "a computed function");
}

TEST(CarriedCalls, WhatAPickleDropsStandsInItsBytes) {
  // The hooks of a tensor, and a name that is popped: neither is a value of the document, both are
  // looked up by who loads the bytes.
  std::string const hooks =
      pickle_of(pickled_tensor({.last_arguments = "\x89"
                                                  "cos\nsystem\nX\2\0\0\0ls\x85R"s}));
  Document const tensor = reshard::parse(hooks);
  EXPECT_EQ(text_of(not_to_carry(tensor, tensor.root)), "");
  EXPECT_EQ(text_of(not_to_copy(tensor)), "os.system");
  Document const popped = reshard::parse("cantigravity\nfly\n0N.");
  EXPECT_EQ(text_of(not_to_carry(popped, popped.root)), "");
  EXPECT_EQ(text_of(not_to_copy(popped)), "antigravity.fly");
  Document const honest = reshard::parse(pickle_of(pickled_tensor({})));
  EXPECT_EQ(text_of(not_to_copy(honest)), "");
}

TEST(CarriedCalls, TheValuesToLeaveOutAreThoseThatLeadToAFinding) {
  Document const document = reshard::parse("(]cour\nC\n)R\x85Nt.");
  std::vector<bool> const found = nodes_not_to_carry(document);
  std::vector<NodeId> const items = document.at(document.root).items;
  EXPECT_TRUE(found[document.root]);
  EXPECT_EQ((std::vector<bool>{found[items[0]], found[items[1]], found[items[2]]}),
            (std::vector<bool>{false, true, false}));
}

}  // namespace
}  // namespace reshard::pickle
