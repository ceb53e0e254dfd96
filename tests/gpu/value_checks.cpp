// Conversions and dequantisation against the host's, bit for bit.

#include "tests/support/value_cases.hpp"

#include "tests/gpu/device_cases.hpp"
#include "tests/gpu/gpu_checks.hpp"

namespace reshard::test {
namespace {

std::string every_code(Testbed& testbed, CheckOptions const&) {
  std::vector<DeviceCase> const cases = all_code_cases();
  CasePlaces places(testbed);
  for (DeviceCase const& one : cases) places.check(one);
  return fmt::format("{} cases", cases.size());
}

std::string random_converts(Testbed& testbed, CheckOptions const& options) {
  CasePlaces places(testbed);
  std::uint64_t const count = options.cases / 4 + 1;
  std::uint64_t inexact = 0;
  for (std::uint64_t seed = options.first_seed; seed < options.first_seed + count; ++seed) {
    ConvertCase const one = random_convert_case(seed);
    places.check(one.device);
    inexact += one.inexact.has_value() ? 1U : 0U;
  }
  return fmt::format("{} cases from seed {}, {} of them inexact", count, options.first_seed,
                     inexact);
}

std::string verdicts(Testbed& testbed, CheckOptions const&) {
  using Places = std::vector<InexactPlace>;
  CasePlaces places(testbed);
  std::uint64_t cases = 0;
  for (Places const& inexact : {Places{}, Places{{2, 39999}}, Places{{2, 0}, {1, 69999}},
                                Places{{1, 30000}, {1, 8191}, {2, 5}}, Places{{0, 2}, {1, 0}}}) {
    ConvertCase const one = inexact_case({3, 70000, 40000}, inexact);
    std::optional<InexactPlace> const found =
        inexact_of(places.check(one.device).data() + verdict_place);
    expect(found.has_value() == one.inexact.has_value(), "the verdict of case {} is wrong", cases);
    expect(!found ||
               (found->request == one.inexact->request && found->element == one.inexact->element),
           "the verdict of case {} names another place", cases);
    ++cases;
  }
  return fmt::format("{} cases", cases);
}

std::string dequantises(Testbed& testbed, CheckOptions const& options) {
  CasePlaces places(testbed);
  std::uint64_t const seeds = options.small ? 1 : 1 + options.cases / 1000;
  std::uint64_t cases = 0;
  for (std::uint64_t seed = options.first_seed; seed < options.first_seed + seeds; ++seed)
    for (DeviceCase const& one : dequantise_cases(seed)) {
      places.check(one);
      ++cases;
    }
  return fmt::format("{} cases from seed {}", cases, options.first_seed);
}

}  // namespace

std::vector<Check> value_checks() {
  return {{"values: every code", every_code},
          {"values: random conversions", random_converts},
          {"values: verdicts", verdicts},
          {"values: dequantisation", dequantises}};
}

}  // namespace reshard::test
