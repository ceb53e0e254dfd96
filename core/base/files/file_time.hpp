#pragma once

#include <cstdint>
#include <ctime>
#include <limits>

namespace reshard {

/// Nanoseconds since 1970. A time outside the range of 64 bits (before 1677 or after 2262) becomes
/// the smallest or largest value.
inline std::int64_t nanoseconds_since_1970(timespec const& time) {
  std::int64_t seconds_part = 0;
  std::int64_t all = 0;
  if (!__builtin_mul_overflow(time.tv_sec, 1'000'000'000LL, &seconds_part) &&
      !__builtin_add_overflow(seconds_part, time.tv_nsec, &all))
    return all;
  return time.tv_sec < 0 ? std::numeric_limits<std::int64_t>::min()
                         : std::numeric_limits<std::int64_t>::max();
}

}  // namespace reshard
