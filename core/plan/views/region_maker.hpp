#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/tables/byte_dim.hpp"
#include "core/layout/pieces/join.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// The axes of a tensor in its order, for join(). Internal to this library, as all of this header.
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

/// Appends the dimensions of a region to `dims`, or reuses the last ones if they are the same, as
/// for most regions of a tensor. Returns the index of the first.
inline std::uint32_t placed_dims(std::span<ByteDim const> of_region, std::vector<ByteDim>& dims) {
  std::size_t const count = of_region.size();
  if (dims.size() >= count && std::ranges::equal(std::span(dims).last(count), of_region))
    return narrow<std::uint32_t>(dims.size() - count);
  dims.insert(dims.end(), of_region.begin(), of_region.end());
  return narrow<std::uint32_t>(dims.size() - count);
}

/// Makes the regions of one tensor; their dimensions are appended to `dims`, which must outlive it.
class RegionMaker {
 public:
  RegionMaker(std::uint64_t element_bytes, std::vector<ByteDim>& dims)
      : element_bytes_(element_bytes), dims_(&dims) {}

  /// An overlap, or a part of one, as bytes: `src` and `dst` are its first element, counted from
  /// the ends.
  template <class Target>
  StridedBlock<Target> make(RegionEnds<Target> const& ends, Index src, Index dst,
                            std::span<OverlapDigit const> part) {
    merge(part, merged_);
    StridedBlock<Target> region;
    region.src_file = ends.from.file;
    region.to = ends.to;
    region.src_offset_bytes =
        ends.from.offset_bytes + static_cast<std::uint64_t>(src) * element_bytes_;
    region.dst_offset_bytes =
        ends.to_offset_bytes + static_cast<std::uint64_t>(dst) * element_bytes_;
    region.run_bytes = element_bytes_;
    if (!merged_.empty() && merged_.back().src_stride == 1 && merged_.back().dst_stride == 1) {
      region.run_bytes *= static_cast<std::uint64_t>(merged_.back().count);
      merged_.pop_back();
    }
    auto const bytes = static_cast<std::int64_t>(element_bytes_);
    byte_dims_.clear();
    for (CopyDim const& dim : merged_)
      byte_dims_.push_back(
          {static_cast<std::uint64_t>(dim.count), dim.src_stride * bytes, dim.dst_stride * bytes});
    region.first_dim = placed_dims(byte_dims_, *dims_);
    region.dim_count = narrow<std::uint32_t>(byte_dims_.size());
    return region;
  }

 private:
  std::uint64_t element_bytes_;
  std::vector<ByteDim>* dims_;
  std::vector<CopyDim> merged_;     ///< of the region under construction
  std::vector<ByteDim> byte_dims_;  ///< of the region under construction
};

}  // namespace reshard
