#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/tables/byte_dim.hpp"

namespace reshard {

/// A strided copy without its addresses, for copy_strided() and the copy kernels.
struct CopyShape {
  std::uint64_t run_bytes = 0;
  std::vector<ByteDim> dims;
};

/// The same copy with as few dimensions as possible: those of extent 1 are removed, contiguous
/// neighbours are joined, and those that continue the run become part of it.
CopyShape simplified(std::uint64_t run_bytes, std::span<ByteDim const> dims);

}  // namespace reshard
