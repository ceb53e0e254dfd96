// The container of torch before 1.6: pickles one behind the other, then the storages. The first
// pickle, a magic number, is put in front of inputs that lack it.

#include "core/containers/torch/legacy_container.hpp"
#include "tests/fuzz/pickle_mutator.hpp"
#include "tests/fuzz/torch_document.hpp"
#include "tests/support/torch_file_bytes.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  static MemoryFile const memory;
  std::string bytes(fuzz::text_of(data, size));
  if (legacy::magic_bytes(fuzz::bytes_of(bytes)) == 0) bytes.insert(0, RawLegacy{}.magic);
  File const file = memory.holding(bytes);
  auto torch = fuzz::accepted(ErrorKind::source, [&] { return read_torch_file(file); });
  if (torch) fuzz::expect_sound(*std::move(torch), bytes.size());
  return 0;
}

/// The pickles follow one another, so the mutator of pickles works on all of them.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  return reshard::fuzz::mutate_pickle(data, size, most, seed);
}
