#include "core/plan/tensor_plan.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/base/counted.hpp"
#include "core/base/file.hpp"
#include "core/layout/join.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/digest_work.hpp"
#include "core/plan/region_maker.hpp"
#include "core/plan/replica_parts.hpp"
#include "core/plan/source_proof.hpp"

namespace reshard {
namespace {

/// Regions, and the number of the cell inside the tensor of each. The largest tensor of a large job
/// has most of its regions, so they are neither moved into larger memory nor copied.
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
  /// Moves what belongs to `at`, then what belongs to where that was, and so on.
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

/// How the index space of a tensor is cut into cells: indices of digits before `digit` one by one,
/// that digit in blocks.
struct CellCut {
  std::size_t digit = 0;
  Index block = 1;
  std::vector<Index> sizes;  ///< of every digit
};

class TensorPlanner {
 public:
  /// `tensor_bytes` are those of the whole plan; the rest goes into `plan`, which is empty.
  TensorPlanner(Plan& plan, std::span<std::uint64_t> tensor_bytes, Model const& model,
                TensorId tensor, Catalog const& source, Catalog const& target,
                PlanLimits const& limits)
      : plan_(plan),
        tensor_bytes_(tensor_bytes),
        model_(model),
        tensor_(tensor),
        logical_(model.tensor(tensor)),
        source_(source),
        target_(target),
        limits_(limits) {
    wanted_ = &target.tensors[index(tensor)];
    distinct_ = distinct_pieces(source.tensors[index(tensor)], source);
  }

  void run(TargetCover cover) {
    std::vector<Piece> const held = distinct_.made();
    std::vector<Piece> const wanted = wanted_->made();
    prove_whole(model_, logical_, distinct_, source_);
    if (cover == TargetCover::whole) prove_target();
    element_ = element_bytes(distinct_, source_, logical_.name);
    for (std::uint32_t const number : wanted_->blobs())
      RESHARD_EXPECT(target_.blobs[number].dtype == source_.blobs[distinct_.blob(0)].dtype);
    std::vector<AxisId> order = axis_order(logical_);
    Piece const& stored = held.front();
    auto const widest = [&stored](AxisId axis) {
      Index stride = 0;
      for (PieceDigit const& digit : stored.digits)
        if (digit.axis == axis && digit.count > 1) stride = std::max(stride, digit.stride);
      return stride == 0 ? std::numeric_limits<Index>::max() : stride;  // those of names first
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](AxisId a, AxisId b) { return widest(a) > widest(b); });
    std::vector<Piece> logical;
    if (limits_.digests) logical = logical_pieces(model_, tensor_);
    join_ = join(held, wanted, order, model_.axes(), logical);
    if (limits_.digests) digest_join_ = join(held, logical, order, model_.axes(), wanted);
    std::vector<Piece> const padding =
        limits_.digests ? padding_pieces(model_, tensor_) : std::vector<Piece>();
    if (!padding.empty()) {
      logical.insert(logical.end(), wanted.begin(), wanted.end());
      padding_join_ = join(held, padding, order, model_.axes(), logical);
    }
    plan_.replicas_dropped += distinct_.dropped;
    plan_.joined_regions += join_.overlaps.size();
    ++plan_.logical_tensors;
    for (std::uint64_t aim = limits_.cell_bytes;; aim /= 2)
      if (add_cells(aim)) return;
  }

 private:
  /// Nothing may be lost: the target's stored tensors, not counting replicas and copies, hold every
  /// element once, too.
  void prove_target() const {
    Distinct const distinct = distinct_pieces(*wanted_, target_);
    auto const fault = tile(distinct.made(), model_.domain(logical_), model_.axes());
    if (!fault) return;
    if (fault->holders == 0)
      fail(ErrorKind::usage,
           "target: '{}' is in the source, but no stored tensor of the target holds {}. Choose "
           "a target whose map describes it. To leave it out, add its stored name to `drop` in "
           "a copy of the source's map.",
           logical_.name, fault->where);
    fail(ErrorKind::usage,
         "target: {} hold {} of '{}'. Limit one of the map's entries with `in` or `when`.",
         counted(fault->holders, "stored tensor"), fault->where, logical_.name);
  }

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
    make_keyed(keyed_, join_, cut, [this](Overlap const& overlap) {
      FilePlace const to = place(target_, wanted_->blob(overlap.dst));
      return RegionEnds<std::uint32_t>{place(source_, distinct_.blob(overlap.src)), to.file,
                                       to.offset_bytes};
    });
    make_keyed(keyed_digests_, digest_join_, cut, [this](Overlap const& overlap) {
      return RegionEnds<DigestId>{place(source_, distinct_.blob(overlap.src)), digest_of(tensor_)};
    });
    add_padding(cut);
    std::vector<Cell> cells;
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
        Cell cell = measured(members);
        if (cell.staging_bytes > limits_.staging_bytes) {
          if (aim > element_) return false;
          fail(ErrorKind::resources,
               "tensor '{}': one step needs {} of memory, {} are available. Raise run.memory.",
               logical_.name, human_bytes(cell.staging_bytes), human_bytes(limits_.staging_bytes));
        }
        cell.first_region =
            narrow<std::uint32_t>(static_cast<std::size_t>(members.data() - regions.data()));
        cell.region_count = narrow<std::uint32_t>(members.size());
        cell.first_digest = narrow<std::uint32_t>(digest);
        for (; digest < digest_numbers.size() && digest_numbers[digest] == number; ++digest)
          ++cell.digest_count;  // the first replicas have all source bytes
        cells.push_back(cell);
      }
      begin = end;
    }
    RESHARD_EXPECT(digest == digest_numbers.size());
    commit(std::move(cells));
    return true;
  }

  /// Padding that is copied along is read, too, and no part of the digest.
  void add_padding(CellCut const& cut) {
    if (padding_join_.overlaps.empty()) return;
    KeyedDigests padding;
    make_keyed(padding, padding_join_, cut, [this](Overlap const& overlap) {
      return RegionEnds<DigestId>{place(source_, distinct_.blob(overlap.src)), DigestId::none};
    });
    keyed_digests_.append(padding);
    keyed_digests_.sort();
  }

  static FilePlace place(Catalog const& catalog, std::uint32_t blob) {
    return {catalog.blobs[blob].file, catalog.blobs[blob].offset_bytes};
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

  /// Clones write nothing: what is laid out for them stays whole.
  std::vector<std::span<Region>> parts_of(std::span<Region> members) const {
    if (limits_.cut_bytes > 1) return {members};
    return by_replicas(members, dims_, limits_.most_target_bytes);
  }

  Cell measured(std::span<Region const> members) const {
    Cell cell;
    cell.staging_bytes = staging_bound(members, dims_, limits_.alignment);
    if (cell.staging_bytes > limits_.staging_bytes)
      cell.staging_bytes = compile_round(members, dims_, limits_.alignment).staging_bytes;
    std::tuple<std::uint32_t, std::uint64_t> last_source{0xffffffffU, 0};
    for (Region const& region : members) {
      std::uint64_t const bytes = bytes_of(region, dims_of(region));
      cell.target_bytes += bytes;
      std::tuple<std::uint32_t, std::uint64_t> const source{region.src_file,
                                                            region.src_offset_bytes};
      if (source != last_source) cell.source_bytes += bytes;
      last_source = source;
    }
    cell.source_bytes = std::min(cell.source_bytes, cell.target_bytes);
    return cell;
  }

  std::span<ByteDim const> dims_of(Region const& region) const {
    return {dims_.data() + region.first_dim, region.dim_count};
  }

  void commit(std::vector<Cell> cells) {
    plan_.digests = std::move(keyed_digests_.blocks);
    plan_.dims = std::move(dims_);
    plan_.regions = std::move(keyed_.blocks);
    plan_.cells = std::move(cells);
    for (Cell const& cell : plan_.cells) plan_.target_bytes += cell.target_bytes;
    std::uint64_t const bytes = static_cast<std::uint64_t>(model_.volume(logical_)) * element_;
    plan_.source_bytes += bytes;
    if (limits_.digests)
      tensor_bytes_[index(tensor_)] =
          static_cast<std::uint64_t>(logical_volume(model_, tensor_)) * element_;
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

  Plan& plan_;
  std::span<std::uint64_t> tensor_bytes_;
  Model const& model_;
  TensorId tensor_;
  LogicalTensor const& logical_;
  Catalog const& source_;
  Catalog const& target_;
  PlanLimits const& limits_;
  TensorPieces const* wanted_ = nullptr;
  Distinct distinct_;
  Join join_;
  Join digest_join_;
  Join padding_join_;
  std::uint64_t element_ = 1;
  KeyedRegions keyed_;
  KeyedDigests keyed_digests_;
  std::vector<ByteDim> dims_;
  std::vector<OverlapDigit> part_;
};

}  // namespace

void plan_tensor(Plan& plan, std::span<std::uint64_t> tensor_bytes, Model const& model,
                 TensorId tensor, Catalog const& source, Catalog const& target,
                 PlanLimits const& limits, TargetCover cover) {
  TensorPlanner(plan, tensor_bytes, model, tensor, source, target, limits).run(cover);
}

}  // namespace reshard
