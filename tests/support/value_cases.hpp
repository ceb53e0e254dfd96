#pragma once

#include <cstdint>
#include <vector>

#include "core/device/value_program.hpp"
#include "tests/support/device_case.hpp"

// Conversions and dequantisations for tests of the value kernels on any device. The wanted bytes
// are those of the host's quant::convert and quant::Dequantiser; where these leave an inexact
// element out, a search for the nearest of all values gives it.

namespace reshard::test {

/// The verdict is at the beginning of the target's memory.
inline constexpr std::uint64_t verdict_place = 0;

/// Every code of BF16, F16, E4M3 and E5M2 as every wanted dtype, with several constants, reported
/// and rounded.
std::vector<DeviceCase> all_code_cases();

/// Some requests of random dtypes at random places. `inexact` is what the verdict must say.
struct ConvertCase {
  DeviceCase device;
  std::optional<InexactPlace> inexact;
};
ConvertCase random_convert_case(std::uint64_t seed);

/// F32 elements of which these are inexact in BF16: `places` are numbers of requests and elements.
ConvertCase inexact_case(std::vector<std::uint64_t> const& counts,
                         std::vector<InexactPlace> const& places);

/// For every quantised form and several shapes: some parts of random rows and columns at random
/// places.
std::vector<DeviceCase> dequantise_cases(std::uint64_t seed);

}  // namespace reshard::test
