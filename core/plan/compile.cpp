#include "core/plan/compile.hpp"

#include <algorithm>
#include <bit>
#include <string>
#include <unordered_map>

#include "core/base/tables/integers.hpp"

namespace reshard {
namespace {

bool is_straight(Region const& region) {
  return region.dim_count == 0 && region.run_bytes >= straight_bytes;
}

std::uint64_t stride_at(ByteDim const& dim, RegionEnd end) {
  return static_cast<std::uint64_t>(end == RegionEnd::source ? dim.from_stride : dim.to_stride);
}

/// The dimensions that step over gaps larger than the limit at one end, and the bytes that the
/// others span from first to last.
struct Levels {
  std::uint64_t outer = 0;  ///< a bit for each dimension
  std::uint64_t block_bytes = 0;

  bool is_outer(std::size_t dim) const { return (outer >> dim & 1) != 0; }
};

Levels levels_of(Region const& region, std::span<ByteDim const> dims, RegionEnd end,
                 std::uint64_t gap_bytes) {
  RESHARD_EXPECT(dims.size() < 64);
  Levels result{0, region.run_bytes};
  std::uint64_t left = (std::uint64_t{1} << dims.size()) - 1;
  bool inside = true;
  while (left != 0) {  // the one with the smallest stride, the first of equal ones
    std::size_t smallest = static_cast<std::size_t>(std::countr_zero(left));
    for (std::size_t d = smallest + 1; d < dims.size(); ++d)
      if ((left >> d & 1) != 0 && stride_at(dims[d], end) < stride_at(dims[smallest], end))
        smallest = d;
    left &= ~(std::uint64_t{1} << smallest);
    std::uint64_t const stride = stride_at(dims[smallest], end);
    inside = inside && stride <= result.block_bytes + gap_bytes;
    if (inside)
      result.block_bytes += stride * (dims[smallest].count - 1);
    else
      result.outer |= std::uint64_t{1} << smallest;
  }
  return result;
}

/// One contiguous range of a target file that the round writes, with its regions.
struct Area {
  FileSpan span;
  std::vector<std::uint32_t> regions;
  std::uint64_t covered = 0;
  std::uint64_t at = 0;  ///< staging offset; that of another area if both have the same bytes
  bool alias = false;
};

class Compiler {
 public:
  Compiler(std::span<Region const> regions, std::span<ByteDim const> dims,
           StagingAlignment alignment)
      : regions_(regions), dims_(dims), alignment_(alignment) {}

  RoundWork run() {
    make_areas();
    place_areas();
    place_reads();
    add_copies();
    for (Area const& area : areas_) add_writes(area);
    return std::move(round_);
  }

 private:
  std::span<ByteDim const> dims_of(Region const& region) const {
    return dims_.subspan(region.first_dim, region.dim_count);
  }

  std::uint64_t take(FileSpan const& span) {
    std::uint64_t const bytes = span.end - span.begin;
    std::uint64_t const at = alignment_.place(round_.staging_bytes, span.begin, bytes);
    round_.staging_bytes = staging_aligned(at + bytes);
    return at;
  }

  /// The ranges of the target that the regions touch, gaps up to a limit included (a neighbour
  /// usually fills them).
  void make_areas() {
    std::vector<FileSpan> spans;
    for (Region const& region : regions_)
      append_spans(region, dims_of(region), RegionEnd::target, sieve_gap_bytes, spans);
    for (FileSpan const& span : united(std::move(spans), 0))
      areas_.push_back({span, {}, 0, 0, false});
    for (std::uint32_t r = 0; r < regions_.size(); ++r) {
      std::vector<FileSpan> mine;
      append_spans(regions_[r], dims_of(regions_[r]), RegionEnd::target, sieve_gap_bytes, mine);
      std::uint64_t const part = bytes_of(regions_[r], dims_of(regions_[r])) / mine.size();
      std::size_t last = areas_.size();
      for (FileSpan const& span : mine) {
        std::size_t const a = area_of(span);
        areas_[a].covered += part;
        if (a != last) areas_[a].regions.push_back(r);
        last = a;
      }
    }
  }

  std::size_t area_of(FileSpan const& span) const {
    auto const after =
        std::upper_bound(areas_.begin(), areas_.end(), span, [](FileSpan const& s, Area const& a) {
          return s.file != a.span.file ? s.file < a.span.file : s.begin < a.span.begin;
        });
    return static_cast<std::size_t>(after - areas_.begin()) - 1;
  }

  /// The sources of an area's bytes, relative to its start: equal texts are equal bytes.
  std::string recipe(Area const& area) const {
    std::string text;
    auto const append = [&text](std::uint64_t value) {
      text.append(reinterpret_cast<char const*>(&value), sizeof value);
    };
    append(area.span.end - area.span.begin);
    for (std::uint32_t const r : area.regions) {
      Region const& region = regions_[r];
      append(region.src_file);
      append(region.src_offset_bytes);
      append(region.dst_offset_bytes - area.span.begin);
      append(region.run_bytes);
      for (ByteDim const& dim : dims_of(region)) {
        append(dim.count);
        append(static_cast<std::uint64_t>(dim.from_stride));
        append(static_cast<std::uint64_t>(dim.to_stride));
      }
    }
    return text;
  }

  void place_areas() {
    std::unordered_map<std::string, std::uint64_t> known;
    bool const several_files =
        areas_.size() > 1 && areas_.front().span.file != areas_.back().span.file;
    for (Area& area : areas_) {
      std::uint64_t const bytes = area.span.end - area.span.begin;
      if (several_files && area.covered == bytes) {
        auto const [place, is_new] = known.emplace(recipe(area), 0);
        area.alias = !is_new;
        if (is_new) place->second = take(area.span);
        area.at = place->second;
        continue;
      }
      area.at = take(area.span);
    }
  }

  /// Every region whose target area is no alias brings bytes; straight ones are read in place, the
  /// others through united source spans.
  void place_reads() {
    std::vector<FileSpan> spans;
    needed_.assign(regions_.size(), false);
    for (Area const& area : areas_) {
      if (area.alias) continue;
      for (std::uint32_t const r : area.regions) needed_[r] = true;
    }
    for (std::uint32_t r = 0; r < regions_.size(); ++r)
      if (needed_[r] && !is_straight(regions_[r]))
        append_spans(regions_[r], dims_of(regions_[r]), RegionEnd::source, sieve_gap_bytes, spans);
    sources_ = united(std::move(spans), sieve_gap_bytes);
    for (FileSpan const& span : sources_) {
      source_at_.push_back(take(span));
      round_.reads.push_back({span.file, span.begin, span.end - span.begin, source_at_.back()});
    }
  }

  std::uint64_t staged_at(std::uint32_t file, std::uint64_t offset) const {
    auto const after = std::upper_bound(sources_.begin(), sources_.end(), offset,
                                        [file](std::uint64_t o, FileSpan const& s) {
                                          return file != s.file ? file < s.file : o < s.begin;
                                        });
    auto const i = static_cast<std::size_t>(after - sources_.begin()) - 1;
    return source_at_[i] + offset - sources_[i].begin;
  }

  void add_copies() {
    for (Area const& area : areas_) {
      if (area.alias) continue;
      for (std::uint32_t const r : area.regions) {
        Region const& region = regions_[r];
        if (is_straight(region))
          round_.reads.push_back({region.src_file, region.src_offset_bytes, region.run_bytes,
                                  area.at + region.dst_offset_bytes - area.span.begin});
        else
          add_strided(region);
      }
    }
    std::stable_sort(round_.reads.begin(), round_.reads.end(),
                     [](Extent const& a, Extent const& b) {
                       return a.file != b.file ? a.file < b.file : a.offset_bytes < b.offset_bytes;
                     });
  }

  /// Walks the dimensions that are not part of a contiguous block at one of the ends; the rest is
  /// one strided copy.
  void add_strided(Region const& region) {
    auto const dims = dims_of(region);
    std::vector<ByteDim> walked;
    std::vector<ByteDim> inner;
    auto const at_source = levels_of(region, dims, RegionEnd::source, sieve_gap_bytes);
    auto const at_target = levels_of(region, dims, RegionEnd::target, sieve_gap_bytes);
    for (std::size_t d = 0; d < dims.size(); ++d)
      (at_source.is_outer(d) || at_target.is_outer(d) ? walked : inner).push_back(dims[d]);
    std::vector<std::uint64_t> index(walked.size(), 0);
    for (;;) {
      std::uint64_t src = region.src_offset_bytes;
      std::uint64_t dst = region.dst_offset_bytes;
      for (std::size_t d = 0; d < walked.size(); ++d) {
        src += index[d] * static_cast<std::uint64_t>(walked[d].from_stride);
        dst += index[d] * static_cast<std::uint64_t>(walked[d].to_stride);
      }
      Area const& area = areas_[area_of({region.to, dst, dst})];
      if (!area.alias)
        round_.copies.push_back({staged_at(region.src_file, src), area.at + dst - area.span.begin,
                                 region.run_bytes, inner});
      std::size_t d = walked.size();
      while (d > 0 && ++index[d - 1] == walked[d - 1].count) index[--d] = 0;
      if (d == 0) return;
    }
  }

  void add_writes(Area const& area) {
    if (area.covered == area.span.end - area.span.begin) {
      round_.writes.push_back({area.span.file, area.span.begin, area.covered, area.at});
      return;
    }
    std::vector<FileSpan> runs;
    for (std::uint32_t const r : area.regions)
      append_spans(regions_[r], dims_of(regions_[r]), RegionEnd::target, 0, runs);
    for (FileSpan const& run : united(std::move(runs), 0)) {
      if (run.end <= area.span.begin || run.begin >= area.span.end) continue;
      round_.writes.push_back(
          {run.file, run.begin, run.end - run.begin, area.at + run.begin - area.span.begin});
    }
  }

  std::span<Region const> regions_;
  std::span<ByteDim const> dims_;
  StagingAlignment alignment_;
  RoundWork round_;
  std::vector<Area> areas_;
  std::vector<bool> needed_;
  std::vector<FileSpan> sources_;
  std::vector<std::uint64_t> source_at_;
};

}  // namespace

void append_spans(Region const& region, std::span<ByteDim const> dims, RegionEnd end,
                  std::uint64_t gap_bytes, std::vector<FileSpan>& spans) {
  bool const source = end == RegionEnd::source;
  std::uint32_t const file = source ? region.src_file : region.to;
  std::uint64_t const offset = source ? region.src_offset_bytes : region.dst_offset_bytes;
  if (dims.empty()) {
    spans.push_back({file, offset, offset + region.run_bytes});
    return;
  }
  Levels const levels = levels_of(region, dims, end, gap_bytes);
  if (levels.outer == 0) {
    spans.push_back({file, offset, offset + levels.block_bytes});
    return;
  }
  std::vector<std::uint64_t> index(dims.size(), 0);
  for (;;) {
    std::uint64_t begin = offset;
    for (std::size_t d = 0; d < dims.size(); ++d) begin += index[d] * stride_at(dims[d], end);
    spans.push_back({file, begin, begin + levels.block_bytes});
    std::size_t d = dims.size();
    while (d > 0) {
      if (levels.is_outer(d - 1)) {
        if (++index[d - 1] < dims[d - 1].count) break;
        index[d - 1] = 0;
      }
      --d;
    }
    if (d == 0) return;
  }
}

std::uint64_t staging_bound(std::span<Region const> regions, std::span<ByteDim const> dims,
                            StagingAlignment alignment) {
  std::uint64_t bound = 0;
  std::vector<FileSpan> spans;
  for (Region const& region : regions) {
    auto const own = dims.subspan(region.first_dim, region.dim_count);
    spans.clear();
    append_spans(region, own, RegionEnd::target, sieve_gap_bytes, spans);
    if (!is_straight(region)) append_spans(region, own, RegionEnd::source, sieve_gap_bytes, spans);
    for (FileSpan const& span : spans) bound += alignment.bound(span.end - span.begin);
  }
  return bound;
}

RoundWork compile_round(std::span<Region const> regions, std::span<ByteDim const> dims,
                        StagingAlignment alignment) {
  return Compiler(regions, dims, alignment).run();
}

}  // namespace reshard
