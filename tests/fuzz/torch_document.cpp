#include "tests/fuzz/torch_document.hpp"

#include <vector>

#include "core/containers/torch/pickle/carried_calls.hpp"
#include "tests/fuzz/emitted_calls.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace reshard::fuzz {
namespace {

constexpr std::uint64_t largest_written_bytes = 1 << 20;

/// The bytes of a planned file whose payloads are zeros.
std::string rendered(TorchFilePlan const& plan) {
  std::string bytes(plan.size_bytes, '\0');
  std::vector<std::uint32_t> crcs;
  for (ZipRecord const& storage : plan.storages)
    crcs.push_back(crc32(bytes_of(std::string(storage.size_bytes, '\0'))));
  for (FileSegment const& segment : render_torch_file(plan, crcs)) {
    FUZZ_EXPECT(segment.offset_bytes <= bytes.size() &&
                segment.bytes.size() <= bytes.size() - segment.offset_bytes);
    bytes.replace(segment.offset_bytes, segment.bytes.size(), segment.bytes);
  }
  return bytes;
}

}  // namespace

void expect_stable(pickle::Document const& document) {
  auto const dumped = attempt(ErrorKind::source, [&] { return pickle::dump(document); });
  if (!dumped) return;
  // A class name with dots becomes a chain of calls, so the second reading may be deeper than the
  // limit.
  auto const again =
      attempt(ErrorKind::source, [&] { return pickle::parse(bytes_of(*dumped), "dumped"); });
  if (again) FUZZ_EXPECT(pickle::dump(*again) == *dumped);
  pickle::Document copy;
  copy.root = copy.add_copy(document, document.root);
  FUZZ_EXPECT(copy.nodes.size() <= document.nodes.size());
}

void expect_harmless(pickle::Document const& document) {
  if (pickle::not_to_carry(document, document.root)) return;
  auto const dumped = attempt(ErrorKind::source, [&] { return pickle::dump(document); });
  if (!dumped) return;
  std::string const found = harmful_name(*dumped);
  if (!found.empty()) std::fprintf(stderr, "carried: %s\n", found.c_str());
  FUZZ_EXPECT(found.empty());
}

void expect_sound(TorchFile torch, std::uint64_t file_bytes) {
  for (pickle::TensorRef const& ref : torch.document.tensors) {
    FileTensor const tensor = file_tensor(torch, ref, "t");
    FUZZ_EXPECT(tensor.offset_bytes <= file_bytes);
    FUZZ_EXPECT(!tensor.strides.empty() || tensor.size_bytes <= file_bytes - tensor.offset_bytes);
  }
  auto const plan =
      attempt(ErrorKind::source, [&] { return plan_torch_file(torch.document, "fuzz"); });
  if (!plan || plan->size_bytes > largest_written_bytes) return;
  static MemoryFile const memory;
  auto const again =
      attempt(ErrorKind::source, [&] { return read_torch_file(memory.holding(rendered(*plan))); });
  if (again) FUZZ_EXPECT(pickle::dump(again->document) == plan->pickle_bytes);
}

}  // namespace reshard::fuzz
