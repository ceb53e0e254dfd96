// One tensor item of a .distcp file. It is found by a short way (the first bytes, where they are
// what torch writes) and by a long one (the archive's directory): where both find a tensor, they
// find the same one, and it lies in the item.

#include <vector>

#include "core/containers/dcp/item.hpp"
#include "core/containers/dcp/item_head.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace reshard {
namespace {

struct FoundTensor {
  DType dtype;
  std::vector<Index> shape;
  std::uint64_t storage_offset_bytes;
};

/// By the archive's directory.
std::optional<FoundTensor> by_directory(FileRange const& range) {
  auto const torch = fuzz::attempt(ErrorKind::source, [&] { return read_torch_file(range); });
  if (!torch) return std::nullopt;
  pickle::Node const& root = torch->document.at(torch->document.root);
  if (root.kind != pickle::Kind::tensor) return std::nullopt;
  pickle::TensorRef const& tensor = torch->document.tensors[root.index];
  return FoundTensor{tensor.dtype, tensor.shape,
                     torch->storages.at(tensor.storage.key).offset_bytes};
}

void expect_inside(dcp::ItemTensor const& found, DType dtype, std::vector<Index> const& shape,
                   std::uint64_t item_bytes) {
  FUZZ_EXPECT(found.payload_offset_bytes <= item_bytes);
  if (!found.strides.empty()) return;
  Index const volume = checked_volume(shape, ErrorKind::internal, "an accepted shape");
  FUZZ_EXPECT(static_cast<std::uint64_t>(volume) * static_cast<std::uint64_t>(bits(dtype)) / 8 <=
              item_bytes - found.payload_offset_bytes);
}

/// The item that we would write of the same tensor is found by the short way.
void expect_found_when_written(DType dtype, std::vector<Index> const& shape) {
  auto const layout =
      fuzz::attempt(ErrorKind::source, [&] { return dcp::item_layout(dtype, shape); });
  if (!layout) return;
  dcp::ItemFrame const frame = dcp::item_frame(dtype, shape, 0);
  FUZZ_EXPECT(frame.head.size() == layout->payload_offset_bytes);
  FUZZ_EXPECT(frame.head.size() + layout->payload_bytes + frame.tail.size() == layout->size_bytes);
  auto const again = dcp::read_item_head(fuzz::bytes_of(frame.head), layout->size_bytes);
  FUZZ_EXPECT(again && again->tensor.dtype == dtype && again->tensor.shape == shape &&
              again->payload_offset_bytes == layout->payload_offset_bytes);
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  static MemoryFile const memory;
  std::string_view const bytes = fuzz::text_of(data, size);
  File const file = memory.holding(bytes);
  auto const head = dcp::read_item_head(fuzz::bytes_of(bytes), size);
  auto const found = by_directory(FileRange(file));
  if (head && found) {
    FUZZ_EXPECT(head->tensor.dtype == found->dtype && head->tensor.shape == found->shape);
    FUZZ_EXPECT(head->payload_offset_bytes == found->storage_offset_bytes);
  }
  if (!head && !found) return 0;
  DType const dtype = head ? head->tensor.dtype : found->dtype;
  std::vector<Index> const shape = head ? head->tensor.shape : found->shape;
  ItemPlace const place{.file = 0, .offset_bytes = 0, .size_bytes = size};
  auto const item = fuzz::accepted(
      ErrorKind::source, [&] { return dcp::read_tensor_item(file, place, dtype, shape, "w"); });
  if (!item) return 0;
  expect_inside(*item, dtype, shape, size);
  expect_found_when_written(dtype, shape);
  return 0;
}
