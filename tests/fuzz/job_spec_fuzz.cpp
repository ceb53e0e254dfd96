// A job file, for `run` and for `nightly`; lines behind the first NUL are overrides. A job is the
// same after being printed and read again.

#include <string>
#include <vector>

#include "pipeline/job/job_spec.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  std::string_view text = fuzz::text_of(data, size);
  std::size_t const nul = text.find('\0');
  std::vector<std::string> overrides;
  for (std::size_t begin = nul; begin < text.size();) {
    std::size_t const end = std::min(text.find('\n', begin + 1), text.size());
    overrides.emplace_back(text.substr(begin + 1, end - begin - 1));
    begin = end;
  }
  text = text.substr(0, nul);
  fuzz::attempt(ErrorKind::usage,
                [&] { return parse_job_spec(text, "fuzz.toml", overrides, JobUse::nightly); });
  auto const job = fuzz::accepted(ErrorKind::usage,
                                  [&] { return parse_job_spec(text, "fuzz.toml", overrides); });
  if (!job) return 0;
  JobSpec const again = parse_job_spec(print_spec(*job), "printed", {});
  FUZZ_EXPECT(again == *job);
  FUZZ_EXPECT(changed_keys(again) == changed_keys(*job));
  return 0;
}
