#include "core/formats/torch_zip/carried_calls.hpp"

#include <gtest/gtest.h>

namespace reshard::pickle {
namespace {

/// module.name() inside a Namespace's state.
std::string verdict(std::string_view module, std::string_view name, bool new_object = false) {
  Document document;
  Node call;
  call.kind = Kind::reduce;
  call.callable = document.add_global(module, name);
  call.arguments = document.add_tuple();
  call.new_object = new_object;
  NodeId const state = document.add_dict();
  document.set(state, "value", document.add_list({document.add(std::move(call))}));
  return call_not_to_carry(document, document.add_object("argparse", "Namespace", state));
}

TEST(CarriedCalls, FunctionsThatDoSomethingAreNamed) {
  EXPECT_EQ(verdict("posix", "system"), "posix.system");
  EXPECT_EQ(verdict("os", "system"), "os.system");
  EXPECT_EQ(verdict("builtins", "eval"), "builtins.eval");
  EXPECT_EQ(verdict("__builtin__", "exec"), "__builtin__.exec");
  EXPECT_EQ(verdict("subprocess", "Popen", true), "subprocess.Popen");
  EXPECT_EQ(verdict("numpy.testing._private.utils", "runstring"), "numpy.testing._private.utils.runstring");
  EXPECT_EQ(verdict("torch", "load"), "torch.load");
  EXPECT_EQ(verdict("importlib", "import_module"), "importlib.import_module");
  EXPECT_EQ(verdict("collections", "namedtuple"), "collections.namedtuple");
}

TEST(CarriedCalls, ValuesAndTheLoadersOwnClassesPass) {
  EXPECT_EQ(verdict("collections", "OrderedDict"), "");
  EXPECT_EQ(verdict("pathlib", "PosixPath"), "");
  EXPECT_EQ(verdict("signal", "Signals"), "");
  EXPECT_EQ(verdict("_io", "BytesIO"), "");
  EXPECT_EQ(verdict("megatron.core.transformer.enums", "AttnBackend"), "");
  EXPECT_EQ(verdict("our_framework.settings", "Settings", true), "");
}

TEST(CarriedCalls, AFunctionThatIsItselfComputedIsRefused) {
  Document document;
  Node inner;
  inner.kind = Kind::reduce;
  inner.callable = document.add_global("our_framework", "find");
  inner.arguments = document.add_tuple();
  Node outer;
  outer.kind = Kind::reduce;
  outer.callable = document.add(std::move(inner));
  outer.arguments = document.add_tuple();
  EXPECT_EQ(call_not_to_carry(document, document.add(std::move(outer))), "a computed function");
}

}  // namespace
}  // namespace reshard::pickle
