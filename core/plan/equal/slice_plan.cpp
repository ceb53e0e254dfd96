#include "core/plan/equal/slice_plan.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/base/files/file.hpp"
#include "core/plan/cells/cell_shapes.hpp"
#include "core/plan/cells/replica_parts.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/views/region_maker.hpp"

namespace reshard {
namespace {

/// Regions, each with the number of its cell in the tensor. A tensor that is one slice can have
/// most of a job's regions, so they are neither reallocated nor copied.
template <class Target>
struct KeyedBlocks {
  std::vector<std::uint64_t> cells;
  std::vector<StridedBlock<Target>> blocks;

  void clear() {
    cells.clear();
    blocks.clear();
  }
  void reserve(std::size_t count) {
    cells.reserve(count);
    blocks.reserve(count);
  }
  void append(KeyedBlocks const& other) {
    cells.insert(cells.end(), other.cells.begin(), other.cells.end());
    blocks.insert(blocks.end(), other.blocks.begin(), other.blocks.end());
  }

  /// By cell; those of one cell stay in order.
  void sort() {
    if (std::ranges::is_sorted(cells)) return;
    std::vector<std::uint32_t> from(cells.size());
    std::iota(from.begin(), from.end(), 0U);
    std::ranges::sort(from, [this](std::uint32_t a, std::uint32_t b) {
      return std::tie(cells[a], a) < std::tie(cells[b], b);
    });
    for (std::uint32_t first = 0; first < from.size(); ++first) follow(from, first);
  }

 private:
  /// Follows one cycle of the permutation: moves the element of `at` there, then that of the place
  /// where it was, and so on.
  void follow(std::vector<std::uint32_t>& from, std::uint32_t at) {
    std::uint32_t const first = at;
    if (from[first] == first) return;
    auto const cell = cells[first];
    auto const block = blocks[first];
    for (; from[at] != first; at = std::exchange(from[at], at)) {
      cells[at] = cells[from[at]];
      blocks[at] = blocks[from[at]];
    }
    cells[at] = cell;
    blocks[at] = block;
    from[at] = at;
  }
};
using KeyedRegions = KeyedBlocks<std::uint32_t>;
using KeyedDigests = KeyedBlocks<DigestId>;

/// The division of a tensor's index space into cells: indices of digits before `digit` one by one,
/// that digit in blocks.
struct CellCut {
  std::size_t digit = 0;
  Index block = 1;
  std::vector<Index> sizes;  ///< of every digit
};

/// Regions with the places of their pieces.
std::vector<Region> placed(std::span<Region const> regions, SlicePlaces const& places) {
  std::vector<Region> result(regions.begin(), regions.end());
  for (Region& region : result)
    region = placed(region, places.source[region.src_file], places.target[region.to]);
  return result;
}

class SlicePlanner {
 public:
  SlicePlanner(SlicePieces const& pieces, SlicePlaces const& places, SliceTerms const& terms)
      : places_(places), terms_(terms), limits_(terms.limits), element_(terms.element_bytes) {
    auto const joined = [&](std::span<Piece const> to, std::span<Piece const> splits) {
      return join(pieces.source, to, terms.order, terms.axes, splits);
    };
    join_ = joined(pieces.target, pieces.logical);
    if (!pieces.logical.empty()) digest_join_ = joined(pieces.logical, pieces.target);
    if (!pieces.padding.empty()) {
      std::vector<Piece> splits = pieces.logical;
      splits.insert(splits.end(), pieces.target.begin(), pieces.target.end());
      padding_join_ = joined(pieces.padding, splits);
    }
  }

  SlicePlan run() {
    plan_.overlaps = join_.overlaps.size();
    std::uint64_t aim = limits_.cell_bytes;
    while (!add_cells(aim)) aim /= 2;
    plan_.regions = std::move(keyed_.blocks);
    plan_.digests = std::move(keyed_digests_.blocks);
    plan_.dims = std::move(dims_);
    return std::move(plan_);
  }

 private:
  CellCut cut_for(std::uint64_t aim) const {
    std::size_t const n = join_.digits.size();
    CellCut cut;
    cut.sizes.assign(n, 1);
    std::vector<bool> single(n, true);
    for (std::size_t o = 0; o < join_.overlaps.size(); ++o) {
      auto const span = join_.span_of(o);
      for (std::size_t d = 0; d < n; ++d) {
        cut.sizes[d] = std::max(cut.sizes[d], span[d].first + span[d].count);
        single[d] = single[d] && span[d].count == 1;
      }
    }
    std::uint64_t inner = element_;
    cut.digit = n;
    auto const names =
        static_cast<std::size_t>(std::find(single.begin(), single.end(), false) - single.begin());
    for (std::size_t d = n; d-- > names;) {  // numbers of names come first and stay apart: their
                                             // bytes lie in different stored tensors
      if (inner > aim) break;
      cut.digit = d;
      cut.block = std::max<Index>(1, static_cast<Index>(aim / inner));
      Index const whole =
          static_cast<Index>(limits_.cut_bytes / std::gcd(limits_.cut_bytes, inner));
      if (cut.block > whole) cut.block -= cut.block % whole;
      inner *= static_cast<std::uint64_t>(cut.sizes[d]);
    }
    return cut;
  }

  /// False: a cell came out too large for the staging memory, and smaller ones are possible.
  bool add_cells(std::uint64_t aim) {
    CellCut const cut = cut_for(aim);
    dims_.clear();
    plan_.shapes.clear();
    plan_.measured.clear();
    make_keyed(keyed_, join_, cut, [](Overlap const& overlap) {
      return RegionEnds<std::uint32_t>{{0, overlap.src}, overlap.dst};
    });
    make_keyed(keyed_digests_, digest_join_, cut, [](Overlap const& overlap) {
      return RegionEnds<DigestId>{{0, overlap.src}, DigestId{0}};
    });
    add_padding(cut);
    std::vector<std::uint64_t> const& numbers = keyed_.cells;
    std::vector<Region>& regions = keyed_.blocks;
    std::vector<std::uint64_t> const& digest_numbers = keyed_digests_.cells;
    std::size_t digest = 0;
    for (std::size_t begin = 0; begin < numbers.size();) {
      std::uint64_t const number = numbers[begin];
      std::size_t end = begin;
      while (end < numbers.size() && numbers[end] == number) ++end;
      for (std::span<Region> const members :
           parts_of(std::span(regions).subspan(begin, end - begin))) {
        CellShape shape;
        shape.first_region =
            narrow<std::uint32_t>(static_cast<std::size_t>(members.data() - regions.data()));
        shape.region_count = narrow<std::uint32_t>(members.size());
        shape.first_digest = narrow<std::uint32_t>(digest);
        for (; digest < digest_numbers.size() && digest_numbers[digest] == number; ++digest)
          ++shape.digest_count;  // the first replicas have all source bytes
        if (!add_cell(members, shape, aim)) return false;
      }
      begin = end;
    }
    RESHARD_EXPECT(digest == digest_numbers.size());
    return true;
  }

  bool add_cell(std::span<Region const> members, CellShape shape, std::uint64_t aim) {
    measure(shape, members);
    if (shape.staging_bytes > limits_.staging_bytes) {
      shape.staging_bytes =
          compile_round(placed(members, places_), dims_, limits_.alignment).staging_bytes;
      plan_.measured.push_back(narrow<std::uint32_t>(plan_.shapes.size()));
    }
    if (shape.staging_bytes > limits_.staging_bytes) {
      if (aim > element_) return false;
      fail(ErrorKind::resources,
           "tensor '{}': one step needs {} of memory, {} are available. Raise run.memory.",
           terms_.tensor, human_bytes(shape.staging_bytes), human_bytes(limits_.staging_bytes));
    }
    plan_.shapes.push_back(shape);
    return true;
  }

  /// Adds copied padding, which is read but not part of the digest.
  void add_padding(CellCut const& cut) {
    if (padding_join_.overlaps.empty()) return;
    KeyedDigests padding;
    make_keyed(padding, padding_join_, cut, [](Overlap const& overlap) {
      return RegionEnds<DigestId>{{0, overlap.src}, DigestId::none};
    });
    keyed_digests_.append(padding);
    keyed_digests_.sort();
  }

  /// The regions of a join, cut at the borders of cells, by cell.
  template <class Target, class EndsOf>
  void make_keyed(KeyedBlocks<Target>& keyed, Join const& join, CellCut const& cut,
                  EndsOf ends_of) {
    std::size_t count = 0;
    for (std::size_t o = 0; o < join.overlaps.size(); ++o)
      count += part_count(join.span_of(o), cut);
    keyed.clear();
    keyed.reserve(count);
    RegionMaker maker(element_, dims_);
    for_each_part(join, cut, [&](Overlap const& overlap, std::uint64_t cell, Index src, Index dst) {
      keyed.cells.push_back(cell);
      keyed.blocks.push_back(maker.make(ends_of(overlap), src, dst, part_));
    });
    keyed.sort();
  }

  /// How many parts for_each_part() makes of an overlap.
  static std::size_t part_count(std::span<OverlapDigit const> overlap, CellCut const& cut) {
    std::size_t parts = 1;
    for (std::size_t d = 0; d < overlap.size() && d <= cut.digit; ++d) {
      Index const block = d == cut.digit ? cut.block : 1;
      Index const last = overlap[d].first + overlap[d].count - 1;
      parts *= static_cast<std::size_t>(last / block - overlap[d].first / block + 1);
    }
    return parts;
  }

  /// Calls `add` for every overlap, cut at the borders of cells. The part is in part_.
  template <class Add>
  void for_each_part(Join const& join, CellCut const& cut, Add const& add) {
    for (std::size_t o = 0; o < join.overlaps.size(); ++o) {
      Overlap const& overlap = join.overlaps[o];
      auto const whole = join.span_of(o);
      part_.assign(whole.begin(), whole.end());
      split(join, o, cut, 0, 0, overlap.src_offset, overlap.dst_offset,
            [&](std::uint64_t cell, Index src, Index dst) { add(overlap, cell, src, dst); });
    }
  }

  /// Regions for clones are not divided, as clones write no bytes.
  std::vector<std::span<Region>> parts_of(std::span<Region> members) const {
    if (limits_.cut_bytes > 1) return {members};
    return by_replicas(members, dims_, limits_.most_target_bytes);
  }

  void measure(CellShape& shape, std::span<Region const> members) const {
    shape.source_places = narrow<std::uint32_t>(places_.source.size());
    shape.staging_bytes = staging_bound(members, dims_, limits_.alignment);
    std::tuple<std::uint32_t, std::uint64_t> last_source{0xffffffffU, 0};
    for (Region const& region : members) {
      std::uint64_t const bytes =
          bytes_of(region, std::span(dims_).subspan(region.first_dim, region.dim_count));
      shape.target_bytes += bytes;
      std::tuple<std::uint32_t, std::uint64_t> const source{region.src_file,
                                                            region.src_offset_bytes};
      if (source != last_source) shape.source_bytes += bytes;
      last_source = source;
    }
    shape.source_bytes = std::min(shape.source_bytes, shape.target_bytes);
  }

  /// Cuts an overlap at the borders of cells: outer digits index by index, the cut digit block by
  /// block. The part is in part_.
  template <class Add>
  void split(Join const& join, std::size_t o, CellCut const& cut, std::size_t d, std::uint64_t cell,
             Index src, Index dst, Add const& add) {
    if (d == join.digits.size() || d > cut.digit) return add(cell, src, dst);
    OverlapDigit const whole = join.span_of(o)[d];
    Index const block = d == cut.digit ? cut.block : 1;
    auto const blocks = static_cast<std::uint64_t>((cut.sizes[d] + block - 1) / block);
    for (Index first = whole.first; first < whole.first + whole.count;) {
      Index const end = std::min((first / block + 1) * block, whole.first + whole.count);
      part_[d] = {first, end - first, whole.src_stride, whole.dst_stride};
      split(join, o, cut, d + 1, cell * blocks + static_cast<std::uint64_t>(first / block),
            src + (first - whole.first) * whole.src_stride,
            dst + (first - whole.first) * whole.dst_stride, add);
      first = end;
    }
    part_[d] = whole;
  }

  SlicePlaces const& places_;
  SliceTerms const& terms_;
  PlanLimits const& limits_;
  std::uint64_t element_;
  Join join_;
  Join digest_join_;
  Join padding_join_;
  SlicePlan plan_;
  KeyedRegions keyed_;
  KeyedDigests keyed_digests_;
  std::vector<ByteDim> dims_;
  std::vector<OverlapDigit> part_;
};

}  // namespace

void append_shapes(Plan& plan, ShapeParts const& parts) {
  auto const regions = narrow<std::uint32_t>(plan.shape_regions.size());
  auto const digests = narrow<std::uint32_t>(plan.shape_digests.size());
  auto const dims = narrow<std::uint32_t>(plan.dims.size());
  for (CellShape shape : parts.shapes) {
    shape.first_region += regions;
    shape.first_digest += digests;
    plan.cells.add_shapes(std::span(&shape, 1));
  }
  for (Region& region : parts.regions) region.first_dim += dims;
  for (DigestRegion& digest : parts.digests) digest.first_dim += dims;
  auto const append = [](auto& all, auto& more) {
    if (all.empty())
      all = std::move(more);
    else
      all.insert(all.end(), more.begin(), more.end());
  };
  append(plan.shape_regions, parts.regions);
  append(plan.shape_digests, parts.digests);
  append(plan.dims, parts.dims);
}

SlicePlan plan_slice(SlicePieces const& pieces, SlicePlaces const& places,
                     SliceTerms const& terms) {
  return SlicePlanner(pieces, places, terms).run();
}

std::optional<std::uint64_t> staging_of(SlicePlan const& plan, std::uint32_t cell,
                                        SlicePlaces const& places, PlanLimits const& limits) {
  CellShape const& shape = plan.shapes[cell];
  auto const members = std::span(plan.regions).subspan(shape.first_region, shape.region_count);
  std::uint64_t const bytes =
      compile_round(placed(members, places), plan.dims, limits.alignment).staging_bytes;
  return bytes <= limits.staging_bytes ? std::optional(bytes) : std::nullopt;
}

}  // namespace reshard
