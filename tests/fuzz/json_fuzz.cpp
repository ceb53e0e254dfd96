// JSON: a value is the same after being written, on one line or indented, and read again. Any
// bytes, made valid UTF-8 and quoted, are read as that text.

#include "core/base/text/json.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  std::string_view const text = fuzz::text_of(data, size);
  std::string const valid = valid_utf8(text);
  Json const quoted = parse_json(json_quoted(valid), "quoted");
  FUZZ_EXPECT(quoted.text() != nullptr && *quoted.text() == valid);
  auto const value = fuzz::accepted(ErrorKind::source, [&] { return parse_json(text, "fuzz"); });
  if (!value) return 0;
  for (int const indent : {0, 2}) FUZZ_EXPECT(parse_json(value->dump(indent), "written") == *value);
  return 0;
}
