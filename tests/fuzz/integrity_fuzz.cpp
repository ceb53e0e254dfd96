// integrity.json: what is written of it is read as the same list, and is ASCII, as Megatron-Core
// writes it.

#include <algorithm>

#include "core/formats/manifest/manifest.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  auto const integrity = fuzz::accepted(
      ErrorKind::source, [&] { return parse_integrity(fuzz::text_of(data, size), "fuzz"); });
  if (!integrity) return 0;
  std::string const text = integrity_text(*integrity);
  FUZZ_EXPECT(
      std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
  Integrity const again = parse_integrity(text, "written");
  FUZZ_EXPECT(std::ranges::equal(again.files, integrity->files, [](auto const& a, auto const& b) {
    return a.path == b.path && a.sha256 == b.sha256;
  }));
  return 0;
}
