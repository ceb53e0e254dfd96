// SHA256SUMS: what is written of it is read as the same list.

#include "core/formats/manifest/sha256_sums.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  auto const sums = fuzz::accepted(ErrorKind::source,
                                   [&] { return parse_sums(fuzz::text_of(data, size), "fuzz"); });
  if (!sums) return 0;
  FUZZ_EXPECT(parse_sums(sums_text(*sums), "written") == *sums);
  return 0;
}
