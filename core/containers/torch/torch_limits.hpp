#pragma once

#include <cstdint>

namespace reshard {

/// The largest pickle that is read. It contains structure, not weights; only numpy arrays and byte
/// strings make one large.
inline constexpr std::uint64_t largest_pickle_bytes = std::uint64_t{64} << 20;

}  // namespace reshard
