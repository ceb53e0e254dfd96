// libFuzzer target: the bytes as a bare pickle, and as a torch file in either container. Whatever they are, the outcome is an Error of kind
// source or a document that survives being written and read again.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tests/support/torch_file_bytes.hpp"

namespace reshard {
namespace {

void expect(bool condition) {
  if (!condition) std::abort();
}

/// Small limits: a fuzzer should find wrong turns, not large inputs.
constexpr pickle::Limits limits{.largest_nodes = 1 << 20, .largest_bytes = std::size_t{64} << 20, .deepest = 1000};

void expect_source(Error const& error) { expect(error.kind() == ErrorKind::source && !error.sentence().empty()); }

/// Dumping may fail (cycles no pickle can express), but what was dumped is read again, and dumps to the same bytes.
void expect_stable(pickle::Document const& document) {
  std::string dumped;
  try {
    dumped = pickle::dump(document);
  } catch (Error const& error) {
    return expect_source(error);
  }
  try {
    pickle::Document const again = pickle::parse(std::as_bytes(std::span(dumped)), "dumped");
    expect(pickle::dump(again) == dumped);
  } catch (Error const& error) {
    // A class name with dots becomes a chain of calls, so the second reading may be deeper than the limit.
    expect_source(error);
  }
  pickle::Document copy;
  copy.root = copy.add_copy(document, document.root);
  expect(copy.nodes.size() <= document.nodes.size());
}

void read_pickle(std::string_view bytes) {
  try {
    std::size_t consumed = 0;
    pickle::Document const document = pickle::parse(std::as_bytes(std::span(bytes)), "fuzz", &consumed, limits);
    expect(consumed <= bytes.size());
    expect_stable(document);
  } catch (Error const& error) {
    expect_source(error);
  }
}

void read_file(std::string_view bytes) {
  static MemoryFile const memory;
  try {
    TorchFile torch = read_torch_file(memory.holding(bytes));
    for (pickle::TensorRef const& ref : torch.document.tensors) {
      FileTensor const tensor = file_tensor(torch, ref, "t");
      expect(tensor.offset_bytes <= bytes.size());
      expect(!tensor.strides.empty() || tensor.size_bytes <= bytes.size() - tensor.offset_bytes);
    }
    plan_torch_file(torch.document, "fuzz");
  } catch (Error const& error) {
    expect_source(error);
  }
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string_view const bytes(reinterpret_cast<char const*>(data), size);
  reshard::read_pickle(bytes);
  reshard::read_file(bytes);
  return 0;
}
