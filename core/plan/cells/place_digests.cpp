#include "core/plan/cells/place_digests.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

#include "core/base/error.hpp"

namespace reshard {
namespace {

class Placer {
 public:
  Placer(RoundWork& work, std::span<ByteDim const> dims,
         std::span<std::uint64_t const> tensor_bytes)
      : work_(work), dims_(dims), tensor_bytes_(tensor_bytes) {
    std::vector<Extent> reads = work.reads;
    std::stable_sort(reads.begin(), reads.end(), [](Extent const& a, Extent const& b) {
      return std::tuple(a.file, a.offset_bytes) < std::tuple(b.file, b.offset_bytes);
    });
    for (Extent const& read : reads) cover(read);
  }

  void add(DigestRegion const& region) {
    auto const dims = dims_.subspan(region.first_dim, region.dim_count);
    std::vector<ByteDim> by_stride(dims.begin(), dims.end());
    std::stable_sort(by_stride.begin(), by_stride.end(), [](ByteDim const& a, ByteDim const& b) {
      return a.from_stride > b.from_stride;
    });
    region_ = &region;
    add_block(by_stride, region.src_offset_bytes, region.dst_offset_bytes);
  }

 private:
  /// Reads may overlap: each byte of a file is taken from the first read that contains it.
  void cover(Extent read) {
    if (!covered_.empty() && covered_.back().file == read.file) {
      std::uint64_t const end = covered_.back().offset_bytes + covered_.back().bytes;
      if (end >= read.offset_bytes + read.bytes) return;
      if (end > read.offset_bytes) {
        std::uint64_t const known = end - read.offset_bytes;
        read = {read.file, end, read.bytes - known, read.at + known};
      }
    }
    if (read.bytes > 0) covered_.push_back(read);
  }

  Extent const& covering(std::uint64_t offset) const {
    auto const after =
        std::upper_bound(covered_.begin(), covered_.end(), std::tuple(region_->src_file, offset),
                         [](auto const& place, Extent const& e) {
                           return place < std::tuple(e.file, e.offset_bytes);
                         });
    RESHARD_EXPECT(after != covered_.begin());
    Extent const& found = *(after - 1);
    RESHARD_EXPECT(found.file == region_->src_file && offset < found.offset_bytes + found.bytes);
    return found;
  }

  /// A block within one read is one part; others are walked along the dimension that is outermost
  /// in the file, down to single runs.
  void add_block(std::span<ByteDim const> dims, std::uint64_t src, std::uint64_t at) {
    std::uint64_t span = region_->run_bytes;
    for (ByteDim const& dim : dims)
      span += (dim.count - 1) * static_cast<std::uint64_t>(dim.from_stride);
    Extent const& read = covering(src);
    if (src + span <= read.offset_bytes + read.bytes)
      return add_part(read, src, at, region_->run_bytes, dims);
    if (dims.empty()) return add_run(src, at);
    for (std::uint64_t i = 0; i < dims[0].count; ++i)
      add_block(dims.subspan(1), src + i * static_cast<std::uint64_t>(dims[0].from_stride),
                at + i * static_cast<std::uint64_t>(dims[0].to_stride));
  }

  void add_run(std::uint64_t src, std::uint64_t at) {
    for (std::uint64_t left = region_->run_bytes; left > 0;) {
      Extent const& read = covering(src);
      std::uint64_t const bytes = std::min(left, read.offset_bytes + read.bytes - src);
      add_part(read, src, at, bytes, {});
      src += bytes;
      at += bytes;
      left -= bytes;
    }
  }

  void add_part(Extent const& read, std::uint64_t src, std::uint64_t at, std::uint64_t run_bytes,
                std::span<ByteDim const> dims) {
    DigestId const digest = region_->to;
    std::uint64_t const tensor_bytes = digest == DigestId::none ? 0 : tensor_bytes_[index(digest)];
    work_.digests.push_back({digest,
                             read.at + src - read.offset_bytes,
                             at,
                             run_bytes,
                             {dims.begin(), dims.end()},
                             tensor_bytes,
                             read.file,
                             src});
  }

  RoundWork& work_;
  std::span<ByteDim const> dims_;
  std::span<std::uint64_t const> tensor_bytes_;
  std::vector<Extent> covered_;  ///< by place in the files, disjoint
  DigestRegion const* region_ = nullptr;
};

}  // namespace

void place_digests(RoundWork& work, std::span<DigestRegion const> digests,
                   std::span<ByteDim const> dims, std::span<std::uint64_t const> tensor_bytes) {
  if (digests.empty()) return;
  Placer placer(work, dims, tensor_bytes);
  for (DigestRegion const& digest : digests) placer.add(digest);
}

}  // namespace reshard
