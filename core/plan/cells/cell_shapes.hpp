#pragma once

#include "core/plan/plan.hpp"

namespace reshard {

/// A region of a shape, placed at these file places. Internal to this library.
inline Region placed(Region region, FilePlace const& from, FilePlace const& to) {
  region.src_file = from.file;
  region.src_offset_bytes += from.offset_bytes;
  region.to = to.file;
  region.dst_offset_bytes += to.offset_bytes;
  return region;
}

}  // namespace reshard
