// A torch.save archive: what is read lies in the file, and what we write of it is read as the same
// document.

#include "tests/fuzz/torch_document.hpp"
#include "tests/support/torch_file_bytes.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  static MemoryFile const memory;
  File const file = memory.holding(fuzz::text_of(data, size));
  auto torch = fuzz::accepted(ErrorKind::source, [&] { return read_torch_file(file); });
  if (torch) fuzz::expect_sound(*std::move(torch), size);
  return 0;
}
