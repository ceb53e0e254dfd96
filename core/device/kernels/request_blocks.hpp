#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/host_device.hpp"
#include "core/device/program.hpp"

namespace reshard {

/// The descriptor that contains block `block`. Descriptors are in ascending order of `first_block`,
/// from 0 on. Pre: count >= 1.
template <class Descriptor>
RESHARD_HOST_DEVICE inline Descriptor const& descriptor_of_block(Descriptor const* descriptors,
                                                                 std::uint32_t count,
                                                                 std::uint64_t block) {
  std::uint32_t first = 0;
  while (count > 1) {
    std::uint32_t const half = count / 2;
    if (descriptors[first + half].first_block <= block) first += half;
    count -= half;
  }
  return descriptors[first];
}

/// The descriptors of a launch.
template <class Descriptor>
RESHARD_HOST_DEVICE inline Descriptor const* descriptors_of(Launch const& launch,
                                                            LaunchPlaces const& places) {
  return reinterpret_cast<Descriptor const*>(places.program + launch.at);
}

}  // namespace reshard
