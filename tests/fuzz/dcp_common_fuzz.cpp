// Megatron's common state, as an item of a .distcp file (common.pt goes the same way): the dict
// that is found is one, and the file that we write of its document is read as the same document.

#include "core/containers/dcp/directory.hpp"
#include "tests/fuzz/torch_document.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace reshard {
namespace {

dcp::Directory directory_in_memory() {
  dcp::Directory directory;
  directory.root = directory.folder = "/proc/self/fd";
  return directory;
}

/// An item that is the whole of an open file.
dcp::Metadata metadata_of(File const& file) {
  dcp::Metadata metadata;
  metadata.files = {std::to_string(file.descriptor())};
  metadata.objects = {{.name = std::string(dcp::common_key),
                       .item = {.file = 0, .offset_bytes = 0, .size_bytes = file.size_bytes()}}};
  return metadata;
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  static MemoryFile const memory;
  File const file = memory.holding(fuzz::text_of(data, size));
  auto common = fuzz::accepted(ErrorKind::source, [&] {
    return dcp::read_common(directory_in_memory(), metadata_of(file));
  });
  if (!common || !*common) return 0;
  FUZZ_EXPECT((*common)->torch.document.at((*common)->root).kind == pickle::Kind::dict);
  for (auto const& [key, node] : (*common)->torch.document.members((*common)->root))
    FUZZ_EXPECT(node < (*common)->torch.document.nodes.size());
  fuzz::expect_harmless((*common)->torch.document);
  fuzz::expect_sound(std::move((*common)->torch), size);
  return 0;
}
