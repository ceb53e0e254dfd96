#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/byte_dim.hpp"
#include "core/layout/join.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// Where a blob begins: internal to this library, as all of this header.
struct FilePlace {
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
};
struct RegionEnds {
  FilePlace from;
  FilePlace to;
};

/// An overlap, or a part of one, as bytes: `src` and `dst` are its first element, counted from the
/// ends; its dimensions are appended to `dims`.
Region make_region(RegionEnds const& ends, Index src, Index dst, std::span<OverlapDigit const> part,
                   std::uint64_t element_bytes, std::vector<ByteDim>& dims);

}  // namespace reshard
