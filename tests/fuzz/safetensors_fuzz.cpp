// The header parser on any bytes: an Error of kind source, or tensors that lie in the file one after the other.

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/formats/safetensors/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  try {
    safetensors::Header const header = safetensors::parse_header(std::as_bytes(std::span(data, size)), size, "fuzz");
    std::uint64_t at = header.header_bytes;
    for (FileTensor const& tensor : header.tensors) {
      RESHARD_EXPECT(tensor.offset_bytes == at);
      at += tensor.size_bytes;
      RESHARD_EXPECT(at <= size);
    }
    RESHARD_EXPECT(at == size);
  } catch (Error const& error) {
    if (error.kind() != ErrorKind::source) throw;
  }
  return 0;
}
