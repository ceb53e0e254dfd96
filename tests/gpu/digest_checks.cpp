// Checksums of pieces against a loop over bits.

#include "tests/support/digest_cases.hpp"

#include "tests/gpu/device_cases.hpp"
#include "tests/gpu/gpu_checks.hpp"

namespace reshard::test {
namespace {

std::string random_pieces(Testbed& testbed, CheckOptions const& options) {
  CasePlaces places(testbed);
  std::uint64_t const count = options.cases / 3 + 1;
  for (std::uint64_t seed = options.first_seed; seed < options.first_seed + count; ++seed)
    places.check(random_digest_case(seed).device);
  return fmt::format("{} cases from seed {}", count, options.first_seed);
}

std::string run_lengths(Testbed& testbed, CheckOptions const& options) {
  std::vector<std::uint64_t> lengths{1, 2, 7, 8, 15, 16, 17, 100, 1000, 4096, 4097, 40000};
  if (options.small) lengths = {1, 17, 1000};
  CasePlaces(testbed).check(run_case(lengths, options.first_seed).device);
  CasePlaces(testbed).check(far_case(options.first_seed).device);
  return fmt::format("{} lengths at every address modulo 16, and places beyond 32 bits",
                     lengths.size());
}

}  // namespace

std::vector<Check> digest_checks() {
  return {{"checksums: random pieces", random_pieces}, {"checksums: run lengths", run_lengths}};
}

}  // namespace reshard::test
