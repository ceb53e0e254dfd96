#pragma once

#include <algorithm>
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
/// The axes of a tensor as it states them, for join().
inline std::vector<AxisId> axis_order(LogicalTensor const& tensor) {
  std::vector<AxisId> order;
  for (LogicalAxis const& axis : tensor.axes) order.push_back(axis.axis);
  return order;
}

template <class Target>
struct RegionEnds {
  FilePlace from;
  Target to{};
  std::uint64_t to_offset_bytes = 0;
};

/// Puts the dimensions of a region behind `dims`, or takes the last ones where these are the same,
/// as they are of most regions of a tensor. Returns where they begin.
inline std::uint32_t placed_dims(std::span<ByteDim const> of_region, std::vector<ByteDim>& dims) {
  std::size_t const count = of_region.size();
  if (dims.size() >= count && std::ranges::equal(std::span(dims).last(count), of_region))
    return narrow<std::uint32_t>(dims.size() - count);
  dims.insert(dims.end(), of_region.begin(), of_region.end());
  return narrow<std::uint32_t>(dims.size() - count);
}

/// An overlap, or a part of one, as bytes: `src` and `dst` are its first element, counted from the
/// ends; its dimensions are in `dims`.
template <class Target>
StridedBlock<Target> make_region(RegionEnds<Target> const& ends, Index src, Index dst,
                                 std::span<OverlapDigit const> part, std::uint64_t element_bytes,
                                 std::vector<ByteDim>& dims) {
  auto merged_dims = merged(part);
  StridedBlock<Target> region;
  region.src_file = ends.from.file;
  region.to = ends.to;
  region.src_offset_bytes =
      ends.from.offset_bytes + static_cast<std::uint64_t>(src) * element_bytes;
  region.dst_offset_bytes = ends.to_offset_bytes + static_cast<std::uint64_t>(dst) * element_bytes;
  region.run_bytes = element_bytes;
  if (!merged_dims.empty() && merged_dims.back().src_stride == 1 &&
      merged_dims.back().dst_stride == 1) {
    region.run_bytes *= static_cast<std::uint64_t>(merged_dims.back().count);
    merged_dims.pop_back();
  }
  auto const bytes = static_cast<std::int64_t>(element_bytes);
  std::vector<ByteDim> byte_dims;
  for (CopyDim const& dim : merged_dims)
    byte_dims.push_back(
        {static_cast<std::uint64_t>(dim.count), dim.src_stride * bytes, dim.dst_stride * bytes});
  region.first_dim = placed_dims(byte_dims, dims);
  region.dim_count = narrow<std::uint32_t>(byte_dims.size());
  return region;
}

}  // namespace reshard
