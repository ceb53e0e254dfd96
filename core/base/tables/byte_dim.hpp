#pragma once

#include <cstdint>

namespace reshard {

/// One level of a strided copy, in bytes.
struct ByteDim {
  std::uint64_t count = 1;
  std::int64_t from_stride = 0;
  std::int64_t to_stride = 0;
  friend bool operator==(ByteDim const&, ByteDim const&) = default;
};

}  // namespace reshard
