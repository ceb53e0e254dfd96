// libFuzzer target: the bytes as a .metadata file. Whatever they are, the outcome is an Error of kind source, or metadata whose chunks lie inside
// their tensors and which is the same after being written and read again.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/formats/dcp/metadata.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace reshard {
namespace {

void expect(bool condition) {
  if (!condition) std::abort();
}

void expect_sound(dcp::Metadata const& metadata) {
  std::size_t chunks = 0;
  for (dcp::StoredTensor const& tensor : metadata.tensors)
    for (dcp::Chunk const& chunk : metadata.chunks_of(tensor)) {
      ++chunks;
      auto const offsets = metadata.offsets(chunk);
      auto const sizes = metadata.sizes(chunk);
      expect(offsets.size() == tensor.shape.size() && sizes.size() == tensor.shape.size());
      for (std::size_t d = 0; d < sizes.size(); ++d) expect(offsets[d] >= 0 && sizes[d] >= 0 && sizes[d] <= tensor.shape[d] - offsets[d]);
      expect(chunk.item.file < metadata.files.size() && chunk.item.size_bytes > 0 &&
             chunk.item.offset_bytes + chunk.item.size_bytes < std::uint64_t{1} << 63);
    }
  expect(chunks == metadata.chunks.size());
  for (std::string const& file : metadata.files)
    expect(!file.empty() && !file.starts_with('/') && file != ".." && file.find('\0') == std::string::npos);
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  static MemoryFile const memory;
  dcp::Metadata metadata;
  try {
    metadata = dcp::read_metadata(memory.holding({reinterpret_cast<char const*>(data), size}));
  } catch (Error const& error) {
    expect(error.kind() == ErrorKind::source && !error.sentence().empty());
    return 0;
  }
  expect_sound(metadata);
  for (auto const style : {dcp::MetadataStyle::plain, dcp::MetadataStyle::compact}) {
    std::string const bytes = dcp::write_metadata(metadata, style);
    expect(dcp::write_metadata(dcp::read_metadata(memory.holding(bytes)), style) == bytes);
  }
  return 0;
}
