#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu/testbed.hpp"

namespace reshard::test {

struct CheckOptions {
  std::uint64_t first_seed = 1;
  std::uint64_t cases = 3000;  ///< random cases of copies; the other checks take fewer
  bool small =
      false;  ///< under a memory checker: nothing that takes large memory or breaks the device
};

/// Returns what was checked, "3000 cases from seed 1"; throws CheckFailed, or an Error of the
/// device.
struct Check {
  std::string name;
  std::string (*run)(Testbed& testbed, CheckOptions const& options);
};

std::vector<Check> copy_checks();
std::vector<Check> value_checks();
std::vector<Check> digest_checks();
std::vector<Check> device_checks();

/// The part of a check that needs a process of its own: breaks the device and looks at what comes
/// after. Returns the exit code.
int check_after_device_error();
/// The argument that makes this program run it.
inline constexpr char const* after_device_error_argument = "--after-device-error";

}  // namespace reshard::test
