#include "core/plan/clones.hpp"

#include <algorithm>
#include <tuple>

namespace reshard {
namespace {

/// Adds the runs of a region one by one.
void add_runs(Region const& region, std::span<ByteDim const> dims,
              std::vector<CloneExtent>& stretches) {
  std::vector<std::uint64_t> index(dims.size(), 0);
  for (;;) {
    CloneExtent run{region.src_file, region.src_offset_bytes, region.to, region.dst_offset_bytes,
                    region.run_bytes};
    for (std::size_t d = 0; d < dims.size(); ++d) {
      run.from_bytes += index[d] * static_cast<std::uint64_t>(dims[d].from_stride);
      run.offset_bytes += index[d] * static_cast<std::uint64_t>(dims[d].to_stride);
    }
    stretches.push_back(run);
    std::size_t d = dims.size();
    while (d > 0 && ++index[d - 1] == dims[d - 1].count) index[--d] = 0;
    if (d == 0) return;
  }
}

bool continues(CloneExtent const& before, CloneExtent const& next) {
  return before.file == next.file && before.from_file == next.from_file &&
         before.offset_bytes + before.bytes == next.offset_bytes &&
         before.from_bytes + before.bytes == next.from_bytes;
}

std::uint64_t end_of(Extent const& extent) { return extent.offset_bytes + extent.bytes; }

}  // namespace

std::vector<CloneExtent> straight_stretches(std::span<Region const> regions,
                                            std::span<ByteDim const> dims,
                                            CloneRules const& rules) {
  std::vector<CloneExtent> runs;
  for (Region const& region : regions) {
    bool const apart = region.dim_count > 0 && region.run_bytes < least_apart_bytes;
    if (region.src_file < rules.source_files && !apart)
      add_runs(region, dims.subspan(region.first_dim, region.dim_count), runs);
  }
  std::sort(runs.begin(), runs.end(), [](CloneExtent const& a, CloneExtent const& b) {
    return std::tie(a.file, a.offset_bytes) < std::tie(b.file, b.offset_bytes);
  });
  std::vector<CloneExtent> stretches;
  for (CloneExtent const& run : runs)
    if (!stretches.empty() && continues(stretches.back(), run))
      stretches.back().bytes += run.bytes;
    else
      stretches.push_back(run);
  return stretches;
}

std::vector<CloneExtent> whole_blocks(std::span<CloneExtent const> stretches,
                                      CloneRules const& rules) {
  std::vector<CloneExtent> blocks;
  std::uint64_t const block = rules.block_bytes;
  if (block == 0) return blocks;
  for (CloneExtent const& one : stretches) {
    if (one.from_bytes % block != one.offset_bytes % block) continue;
    std::uint64_t const head = (block - one.offset_bytes % block) % block;
    if (one.bytes < head) continue;
    std::uint64_t const whole = (one.bytes - head) / block * block;
    if (whole >= std::max(block, least_clone_bytes))
      blocks.push_back(
          {one.from_file, one.from_bytes + head, one.file, one.offset_bytes + head, whole});
  }
  return blocks;
}

std::vector<Extent> without_clones(std::span<Extent const> extents,
                                   std::span<CloneExtent const> clones) {
  std::vector<Extent> left;
  for (Extent rest : extents) {
    auto clone = std::ranges::partition_point(clones, [&](CloneExtent const& c) {
      return std::tuple(c.file, c.offset_bytes + c.bytes) <=
             std::tuple(rest.file, rest.offset_bytes);
    });
    for (; clone != clones.end() && clone->file == rest.file && rest.bytes > 0 &&
           clone->offset_bytes < end_of(rest);
         ++clone) {
      if (clone->offset_bytes > rest.offset_bytes)
        left.push_back(
            {rest.file, rest.offset_bytes, clone->offset_bytes - rest.offset_bytes, rest.at});
      std::uint64_t const next = std::min(clone->offset_bytes + clone->bytes, end_of(rest));
      rest = {rest.file, next, end_of(rest) - next, rest.at + (next - rest.offset_bytes)};
    }
    if (rest.bytes > 0) left.push_back(rest);
  }
  return left;
}

}  // namespace reshard
