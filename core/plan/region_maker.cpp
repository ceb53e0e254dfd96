#include "core/plan/region_maker.hpp"

namespace reshard {

Region make_region(RegionEnds const& ends, Index src, Index dst, std::span<OverlapDigit const> part,
                   std::uint64_t element_bytes, std::vector<ByteDim>& dims) {
  auto merged_dims = merged(part);
  Region region;
  region.src_file = ends.from.file;
  region.dst_file = ends.to.file;
  region.src_offset_bytes =
      ends.from.offset_bytes + static_cast<std::uint64_t>(src) * element_bytes;
  region.dst_offset_bytes = ends.to.offset_bytes + static_cast<std::uint64_t>(dst) * element_bytes;
  region.run_bytes = element_bytes;
  if (!merged_dims.empty() && merged_dims.back().src_stride == 1 &&
      merged_dims.back().dst_stride == 1) {
    region.run_bytes *= static_cast<std::uint64_t>(merged_dims.back().count);
    merged_dims.pop_back();
  }
  region.first_dim = narrow<std::uint32_t>(dims.size());
  region.dim_count = narrow<std::uint32_t>(merged_dims.size());
  auto const bytes = static_cast<std::int64_t>(element_bytes);
  for (CopyDim const& dim : merged_dims)
    dims.push_back(
        {static_cast<std::uint64_t>(dim.count), dim.src_stride * bytes, dim.dst_stride * bytes});
  return region;
}

}  // namespace reshard
