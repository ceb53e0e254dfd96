#pragma once

#include <cstdint>

namespace reshard {

/// In place of a tensor's number in Plan::digests and DigestPart: bytes that are read and are no
/// part of a digest (padding that is copied along).
inline constexpr std::uint32_t no_tensor = 0xffffffffU;

}  // namespace reshard
