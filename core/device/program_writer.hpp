#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "core/base/error.hpp"
#include "core/device/program.hpp"

namespace reshard {

/// Appends descriptors at the next multiple of 16; returns the offset of the first one.
template <class Descriptor>
std::uint64_t append_descriptors(Program& program, std::span<Descriptor const> descriptors) {
  static_assert(std::is_trivially_copyable_v<Descriptor>);
  std::size_t const at = (program.bytes.size() + 15) / 16 * 16;
  program.bytes.resize(at + descriptors.size_bytes());
  if (!descriptors.empty())
    std::memcpy(program.bytes.data() + at, descriptors.data(), descriptors.size_bytes());
  return at;
}

/// The number of blocks for a launch; more than a grid can have is an internal Error.
inline std::uint32_t block_count(std::uint64_t blocks) {
  RESHARD_EXPECT(blocks <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()));
  return static_cast<std::uint32_t>(blocks);
}

}  // namespace reshard
