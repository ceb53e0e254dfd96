#pragma once

#include <algorithm>

#include "tests/gpu/testbed.hpp"
#include "tests/support/device_case.hpp"

namespace reshard::test {

/// Carries out cases on a device; what lies around the target is compared, too.
class CasePlaces {
 public:
  explicit CasePlaces(Testbed& testbed) : testbed_(testbed) {}

  /// Returns the target's memory.
  std::vector<std::byte> check(DeviceCase const& one) {
    constexpr std::byte poison{0xdb};
    constexpr std::size_t guard_bytes = 256;
    std::vector<std::byte> around(one.to.size() + 2 * guard_bytes, poison);
    std::copy(one.to.begin(), one.to.end(), around.begin() + guard_bytes);
    testbed_.upload(room(from_, one.from.size()), one.from);
    std::byte* const to = room(to_, around.size());
    testbed_.upload(to, around);
    testbed_.carry_out(one.program, from_->data(), to + guard_bytes);
    std::vector<std::byte> const found = testbed_.download(to, around.size());
    std::copy(one.wanted.begin(), one.wanted.end(), around.begin() + guard_bytes);
    auto const differs =
        std::mismatch(found.begin(), found.end(), around.begin()).first - found.begin();
    expect(found == around, "{}: byte {} of {} of the target is wrong", one.name,
           differs - static_cast<std::ptrdiff_t>(guard_bytes), one.to.size());
    return {found.begin() + guard_bytes, found.end() - static_cast<std::ptrdiff_t>(guard_bytes)};
  }

 private:
  std::byte* room(std::unique_ptr<DeviceMemory>& memory, std::uint64_t bytes) {
    if (memory == nullptr || memory->bytes() < bytes) {
      memory.reset();
      memory = testbed_.device().allocate(2 * bytes + 256);
    }
    return memory->data();
  }

  Testbed& testbed_;
  std::unique_ptr<DeviceMemory> from_;
  std::unique_ptr<DeviceMemory> to_;
};

}  // namespace reshard::test
