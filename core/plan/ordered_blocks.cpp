#include "core/plan/ordered_blocks.hpp"

#include <algorithm>
#include <functional>
#include <span>

#include "core/base/files/file.hpp"
#include "core/base/tables/integers.hpp"
#include "core/layout/pieces/join.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "core/plan/equal/replicas.hpp"
#include "core/plan/equal/source_proof.hpp"
#include "core/plan/views/region_maker.hpp"

namespace reshard {
namespace {

std::uint64_t step(ByteDim const& dim) { return static_cast<std::uint64_t>(dim.to_stride); }

/// Bytes from the first to the last of a block in the tensor.
std::uint64_t reach_of(std::uint64_t run_bytes, std::span<ByteDim const> dims) {
  std::uint64_t reach = run_bytes;
  for (ByteDim const& dim : dims) reach += (dim.count - 1) * step(dim);
  return reach;
}

/// Cuts regions to bytes [begin, end) of the tensor.
class Clipper {
 public:
  Clipper(std::uint64_t begin, std::uint64_t end, std::uint32_t file)
      : begin_(begin), end_(end), file_(file) {}

  void add(Region const& region, std::span<ByteDim const> of_region) {
    source_ = region.src_file;
    run_bytes_ = region.run_bytes;
    outer_.clear();
    clip(region.src_offset_bytes, region.dst_offset_bytes, of_region);
  }

  std::vector<Region> regions;
  std::vector<ByteDim> dims;

 private:
  /// `inner` are the dimensions that are left, the widest first.
  void clip(std::uint64_t src, std::uint64_t dst, std::span<ByteDim const> inner) {
    std::uint64_t const reach = reach_of(run_bytes_, inner);
    if (dst >= end_ || dst + reach <= begin_) return;
    if (dst >= begin_ && dst + reach <= end_) return put(src, dst, run_bytes_, inner);
    if (inner.empty()) {
      std::uint64_t const first = std::max(dst, begin_);
      return put(src + (first - dst), first, std::min(dst + run_bytes_, end_) - first, {});
    }
    ByteDim const dim = inner.front();
    auto const rest = inner.subspan(1);
    std::uint64_t const part = reach_of(run_bytes_, rest);
    // The first index that ends after begin_, and one past the last that begins before end_.
    std::uint64_t const low = dst + part > begin_ ? 0 : (begin_ - dst - part) / step(dim) + 1;
    std::uint64_t const high = std::min(dim.count, (end_ - dst + step(dim) - 1) / step(dim));
    // Those that lie inside completely are one region.
    std::uint64_t const first_whole =
        dst >= begin_ ? 0 : std::min(high, (begin_ - dst + step(dim) - 1) / step(dim));
    std::uint64_t const last_whole =
        dst + part > end_ ? 0 : std::min(dim.count, (end_ - dst - part) / step(dim) + 1);
    for (std::uint64_t i = low; i < high; ++i) {
      if (i == std::max(low, first_whole) && last_whole > i) {
        put_many(place(src, dim.from_stride, i), dst + i * step(dim),
                 {last_whole - i, dim.from_stride, dim.to_stride}, rest);
        i = last_whole - 1;
        continue;
      }
      clip(place(src, dim.from_stride, i), dst + i * step(dim), rest);
    }
  }

  static std::uint64_t place(std::uint64_t from, std::int64_t stride, std::uint64_t i) {
    return from + static_cast<std::uint64_t>(stride * static_cast<std::int64_t>(i));
  }

  void put(std::uint64_t src, std::uint64_t dst, std::uint64_t run_bytes,
           std::span<ByteDim const> inner) {
    Region region;
    region.src_file = source_;
    region.to = file_;
    region.src_offset_bytes = src;
    region.dst_offset_bytes = dst;
    region.run_bytes = run_bytes;
    region.first_dim = narrow<std::uint32_t>(dims.size());
    region.dim_count = narrow<std::uint32_t>(inner.size());
    dims.insert(dims.end(), inner.begin(), inner.end());
    regions.push_back(region);
  }

  void put_many(std::uint64_t src, std::uint64_t dst, ByteDim const& dim,
                std::span<ByteDim const> rest) {
    outer_.assign(1, dim);
    outer_.insert(outer_.end(), rest.begin(), rest.end());
    put(src, dst, run_bytes_, outer_);
  }

  std::uint64_t begin_;
  std::uint64_t end_;
  std::uint32_t file_;
  std::uint32_t source_ = 0;
  std::uint64_t run_bytes_ = 0;
  std::vector<ByteDim> outer_;
};

}  // namespace

OrderedBlocks::OrderedBlocks(Model const& model, Catalog const& source, TensorId tensor)
    : name_(model.tensor(tensor).name) {
  LogicalTensor const& logical = model.tensor(tensor);
  Distinct const distinct = distinct_pieces(source.tensors[index(tensor)], source);
  prove_whole(model, logical, distinct, source);
  element_bytes_ = element_bytes(distinct, source, logical.name);
  bytes_ = static_cast<std::uint64_t>(logical_volume(model, tensor)) * element_bytes_;
  Join const joined =
      join(distinct.made(), logical_pieces(model, tensor), axis_order(logical), model.axes());
  std::vector<ByteDim> dims;
  RegionMaker maker(element_bytes_, dims);
  for (std::size_t o = 0; o < joined.overlaps.size(); ++o) {
    Overlap const& overlap = joined.overlaps[o];
    Blob const& blob = source.blobs[distinct.blob(overlap.src)];
    RegionEnds<std::uint32_t> const ends{{blob.offset_bytes, blob.file}, 0};
    dims.clear();
    Region region = maker.make(ends, overlap.src_offset, overlap.dst_offset, joined.span_of(o));
    std::ranges::sort(dims, std::greater<>(), &ByteDim::to_stride);
    RESHARD_EXPECT(dims.empty() || dims.back().to_stride > 0);
    region.first_dim = placed_dims(dims, dims_);
    regions_.push_back(region);
  }
  std::ranges::sort(regions_, {}, &Region::dst_offset_bytes);
  for (Region const& region : regions_)
    ends_.push_back(
        region.dst_offset_bytes +
        reach_of(region.run_bytes, {dims_.data() + region.first_dim, region.dim_count}));
}

RoundWork OrderedBlocks::round(std::uint32_t file, std::uint64_t end) const {
  Clipper clipper(at_, end, file);
  for (std::size_t r = 0; r < regions_.size() && regions_[r].dst_offset_bytes < end; ++r)
    if (ends_[r] > at_)
      clipper.add(regions_[r], {dims_.data() + regions_[r].first_dim, regions_[r].dim_count});
  return compile_round(clipper.regions, clipper.dims);
}

RoundWork OrderedBlocks::next(std::uint32_t file, std::uint64_t staging_bytes) {
  RESHARD_EXPECT(!done());
  std::uint64_t const most =
      std::max(element_bytes_, staging_bytes / 2 / element_bytes_ * element_bytes_);
  if (block_bytes_ == 0) block_bytes_ = most;
  for (;;) {
    std::uint64_t const end = std::min(bytes_, at_ + block_bytes_);
    RoundWork work = round(file, end);
    if (work.staging_bytes <= staging_bytes) {
      at_ = end;
      return work;
    }
    if (block_bytes_ == element_bytes_)
      fail(ErrorKind::resources,
           "tensor '{}': one element needs {} of memory, {} are available. Give more memory.",
           name_, human_bytes(work.staging_bytes), human_bytes(staging_bytes));
    block_bytes_ = std::max(element_bytes_, block_bytes_ / 2 / element_bytes_ * element_bytes_);
  }
}

}  // namespace reshard
