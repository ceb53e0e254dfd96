// reshard.json: it is the same after being written and read again, and names no file outside the
// checkpoint. The digest of all tensors, which must agree, is put right in inputs where it is all
// that is wrong.

#include "core/formats/manifest/manifest.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace reshard {
namespace {

/// The total that the refusal of another one names.
std::string wanted_total(std::string_view text) {
  try {
    (void)parse_manifest(text, "fuzz");
  } catch (Error const& error) {
    constexpr std::string_view before = "that of the tensors listed is ";
    std::size_t const at = error.sentence().find(before);
    return at == std::string::npos ? "" : error.sentence().substr(at + before.size(), 32);
  }
  return "";
}

std::string with_total(std::string text, std::string const& total) {
  std::size_t const key = text.find("\"total\"");
  std::size_t const begin = key == std::string::npos ? key : text.find('"', key + 7);
  std::size_t const end = begin == std::string::npos ? begin : text.find('"', begin + 1);
  return end == std::string::npos ? text : text.replace(begin + 1, end - begin - 1, total);
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  std::string text(fuzz::text_of(data, size));
  if (std::string const total = wanted_total(text); !total.empty())
    text = with_total(std::move(text), total);
  auto const manifest =
      fuzz::accepted(ErrorKind::source, [&] { return parse_manifest(text, "fuzz"); });
  if (!manifest) return 0;
  for (FileRecord const& file : manifest->files)
    FUZZ_EXPECT(!file.path.empty() && file.path[0] != '/' &&
                ("/" + file.path + "/").find("/../") == std::string::npos);
  FUZZ_EXPECT(parse_manifest(manifest_text(*manifest), "written") == *manifest);
  return 0;
}
