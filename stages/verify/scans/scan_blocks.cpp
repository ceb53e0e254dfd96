#include "stages/verify/scans/scan_blocks.hpp"

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "core/base/tables/integers.hpp"
#include "core/device/strided_copy.hpp"
#include "core/device/strided_digest.hpp"

namespace reshard {
namespace {

/// Where the run of index 0 begins.
struct Place {
  std::uint64_t from = 0;  ///< of the file
  std::uint64_t to = 0;    ///< of the logical tensor
};

Place moved(Place place, ByteDim const& dim, std::uint64_t index) {
  return {place.from + index * static_cast<std::uint64_t>(dim.from_stride),
          place.to + index * static_cast<std::uint64_t>(dim.to_stride)};
}

std::uint64_t reach(ByteDim const& dim) {
  return (dim.count - 1) * static_cast<std::uint64_t>(std::abs(dim.from_stride));
}

/// Cuts the regions of one piece into blocks.
class Cutter {
 public:
  Cutter(FileBlocks& out, ShareId share, std::uint64_t tensor_bytes, std::uint64_t most_bytes)
      : out_(out), share_(share), tensor_bytes_(tensor_bytes), most_bytes_(most_bytes) {}

  /// Takes dimensions before a certain one index by index, that one some indices at a time, those
  /// after it completely.
  void cut(CopyShape shape, Place place) const {
    if (shape.run_bytes > most_bytes_) shape = with_short_runs(std::move(shape), place);
    std::uint64_t span = shape.run_bytes;
    std::size_t whole = shape.dims.size();
    while (whole > 0 && span + reach(shape.dims[whole - 1]) <= most_bytes_)
      span += reach(shape.dims[--whole]);
    if (whole == 0) return add(shape.run_bytes, add_dims(shape.dims), shape.dims, place);
    ByteDim const last = shape.dims[whole - 1];
    std::span const before(shape.dims.data(), whole - 1);
    std::vector<ByteDim> dims(shape.dims.begin() + static_cast<std::ptrdiff_t>(whole) - 1,
                              shape.dims.end());
    dims[0].count =
        std::min(last.count,
                 (most_bytes_ - span) / static_cast<std::uint64_t>(std::abs(last.from_stride)) + 1);
    std::uint64_t const step = dims[0].count;
    add_steps(before, place, shape.run_bytes, dims,
              {.count = last.count / step,
               .from_stride = scaled(last.from_stride, step),
               .to_stride = scaled(last.to_stride, step)});
    dims[0].count = last.count % step;
    if (dims[0].count == 0) return;
    add_steps(before, moved(place, last, last.count - dims[0].count), shape.run_bytes, dims, {});
  }

 private:
  static std::int64_t scaled(std::int64_t stride, std::uint64_t count) {
    return stride * static_cast<std::int64_t>(count);
  }

  /// The shape with each run divided into parts of most_bytes_, as a further dimension; the rest of
  /// each run is cut at once.
  CopyShape with_short_runs(CopyShape shape, Place place) const {
    std::uint64_t const parts = shape.run_bytes / most_bytes_;
    if (std::uint64_t const rest = shape.run_bytes % most_bytes_; rest > 0)
      cut({rest, shape.dims}, {place.from + parts * most_bytes_, place.to + parts * most_bytes_});
    auto const stride = narrow<std::int64_t>(most_bytes_);
    shape.dims.push_back({parts, stride, stride});
    shape.run_bytes = most_bytes_;
    return shape;
  }

  std::uint32_t add_dims(std::span<ByteDim const> dims) const {
    auto const first = narrow<std::uint32_t>(out_.dims.size());
    out_.dims.insert(out_.dims.end(), dims.begin(), dims.end());
    return first;
  }

  /// Adds a block of `dims` for every index of `before` and of `steps`.
  void add_steps(std::span<ByteDim const> before, Place place, std::uint64_t run_bytes,
                 std::span<ByteDim const> dims, ByteDim const& steps) const {
    std::vector<ByteDim> outer(before.begin(), before.end());
    outer.push_back(steps);
    std::uint64_t count = 1;
    for (ByteDim const& dim : outer) count *= dim.count;
    std::uint32_t const first_dim = add_dims(dims);
    for (std::uint64_t i = 0; i < count; ++i) {
      RunPlace const step = place_of_run(i, outer.data(), outer.size());
      add(run_bytes, first_dim, dims,
          {place.from + static_cast<std::uint64_t>(step.from),
           place.to + static_cast<std::uint64_t>(step.to)});
    }
  }

  void add(std::uint64_t run_bytes, std::uint32_t first_dim, std::span<ByteDim const> dims,
           Place place) const {
    ScanBlock block{.begin = place.from,
                    .end = place.from + run_bytes,
                    .from = place.from,
                    .run_bytes = run_bytes,
                    .after_bytes = tensor_bytes_ - place.to - run_bytes,
                    .share = share_,
                    .first_dim = first_dim,
                    .dim_count = narrow<std::uint32_t>(dims.size())};
    for (ByteDim const& dim : dims)
      if (dim.from_stride < 0)
        block.begin -= reach(dim);
      else
        block.end += reach(dim);
    out_.blocks.push_back(block);
  }

  FileBlocks& out_;
  ShareId share_;
  std::uint64_t tensor_bytes_;
  std::uint64_t most_bytes_;
};

}  // namespace

FileBlocks blocks_of(DigestWork const& work, std::span<std::uint32_t const> regions,
                     std::uint64_t most_bytes) {
  FileBlocks out;
  for (std::uint32_t const number : regions) {
    ShareRegion const& region = work.regions[number];
    CopyShape shape =
        digest_shape(region.run_bytes, {work.dims.data() + region.first_dim, region.dim_count});
    if (shape.run_bytes == 0) continue;
    std::uint64_t const tensor_bytes = work.tensor_bytes[index(work.share(region.to).digest)];
    Cutter const cutter(out, region.to, tensor_bytes, most_bytes);
    cutter.cut(std::move(shape), {region.src_offset_bytes, region.dst_offset_bytes});
  }
  std::sort(out.blocks.begin(), out.blocks.end(), [](ScanBlock const& a, ScanBlock const& b) {
    return std::tie(a.begin, a.end, a.share, a.after_bytes) <
           std::tie(b.begin, b.end, b.share, b.after_bytes);
  });
  return out;
}

void keep_share(FileBlocks& blocks, std::uint64_t begin, std::uint64_t end) {
  std::uint64_t before = 0;
  std::erase_if(blocks.blocks, [&](ScanBlock const& block) {
    std::uint64_t const first = before;
    before += copied_bytes(block.run_bytes, blocks.dims_of(block));
    return first < begin || first >= end;
  });
}

}  // namespace reshard
