// A .metadata file: its chunks lie inside their tensors, and what we write of it is read as the
// same metadata.

#include "core/containers/dcp/metadata/metadata.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/pickle_mutator.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace reshard {
namespace {

void expect_sound(dcp::Metadata const& metadata) {
  std::size_t chunks = 0;
  for (StoredTensor const& tensor : metadata.tensors)
    for (StoredChunk const& chunk : metadata.chunks_of(tensor)) {
      ++chunks;
      auto const offsets = metadata.offsets(chunk);
      auto const sizes = metadata.sizes(chunk);
      FUZZ_EXPECT(offsets.size() == tensor.shape.size() && sizes.size() == tensor.shape.size());
      for (std::size_t d = 0; d < sizes.size(); ++d)
        FUZZ_EXPECT(offsets[d] >= 0 && sizes[d] >= 0 && sizes[d] <= tensor.shape[d] - offsets[d]);
      FUZZ_EXPECT(chunk.item.file < metadata.files.size() && chunk.item.size_bytes > 0 &&
                  chunk.item.offset_bytes + chunk.item.size_bytes < std::uint64_t{1} << 63);
    }
  FUZZ_EXPECT(chunks == metadata.chunks.size());
  for (std::string const& file : metadata.files)
    FUZZ_EXPECT(!file.empty() && !file.starts_with('/') && file != ".." &&
                file.find('\0') == std::string::npos);
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  static MemoryFile const memory;
  auto const metadata = fuzz::accepted(ErrorKind::source, [&] {
    return dcp::read_metadata(memory.holding(fuzz::text_of(data, size)));
  });
  if (!metadata) return 0;
  expect_sound(*metadata);
  for (auto const style : {dcp::MetadataStyle::plain, dcp::MetadataStyle::compact}) {
    std::string const bytes = dcp::write_metadata(*metadata, style);
    FUZZ_EXPECT(dcp::write_metadata(dcp::read_metadata(memory.holding(bytes)), style) == bytes);
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  return reshard::fuzz::mutate_pickle(data, size, most, seed);
}
