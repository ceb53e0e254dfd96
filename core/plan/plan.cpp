#include "core/plan/plan.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/base/file.hpp"
#include "core/base/workers.hpp"
#include "core/layout/join.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/digest_work.hpp"
#include "core/plan/region_maker.hpp"
#include "core/plan/source_proof.hpp"

namespace reshard {
namespace {

/// A region with the number of its cell inside the tensor.
template <class Target>
struct Keyed {
  std::uint64_t cell = 0;
  StridedBlock<Target> region;
};
using KeyedRegion = Keyed<std::uint32_t>;
using KeyedDigest = Keyed<DigestId>;

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

  void run() {
    prove_whole(model_, logical_, distinct_, source_);
    prove_target();
    element_ = element_bytes(distinct_, source_, logical_.name);
    for (std::uint32_t const number : wanted_->blobs)
      RESHARD_EXPECT(target_.blobs[number].dtype == source_.blobs[distinct_.blobs.front()].dtype);
    std::vector<AxisId> order;
    for (LogicalAxis const& axis : logical_.axes) order.push_back(axis.axis);
    Piece const& stored = distinct_.pieces.front();
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
    join_ = join(distinct_.pieces, wanted_->pieces, order, model_.axes(), logical);
    if (limits_.digests)
      digest_join_ = join(distinct_.pieces, logical, order, model_.axes(), wanted_->pieces);
    std::vector<Piece> const padding =
        limits_.digests ? padding_pieces(model_, tensor_) : std::vector<Piece>();
    if (!padding.empty()) {
      logical.insert(logical.end(), wanted_->pieces.begin(), wanted_->pieces.end());
      padding_join_ = join(distinct_.pieces, padding, order, model_.axes(), logical);
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
    auto const fault = tile(distinct.pieces, model_.domain(logical_), model_.axes());
    if (!fault) return;
    if (fault->holders == 0)
      fail(
          ErrorKind::usage,
          "target: '{}' is in the source, but no stored tensor of the target holds {}. Choose a target form whose map has a place for it, "
          "or add its stored name to `drop` in a copy of the source's map to leave it out.",
          logical_.name, fault->where);
    fail(
        ErrorKind::usage,
        "target: {} stored tensors hold {} of '{}'. Limit one of the map's entries with `in` or `when`.",
        fault->holders, fault->where, logical_.name);
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
      FilePlace const to = place(target_, wanted_->blobs[overlap.dst]);
      return RegionEnds<std::uint32_t>{place(source_, distinct_.blobs[overlap.src]), to.file,
                                       to.offset_bytes};
    });
    make_keyed(keyed_digests_, digest_join_, cut, [this](Overlap const& overlap) {
      return RegionEnds<DigestId>{place(source_, distinct_.blobs[overlap.src]), digest_of(tensor_)};
    });
    add_padding(cut);
    std::vector<Cell> cells;
    std::vector<Region> regions;
    regions.reserve(keyed_.size());
    for (KeyedRegion const& keyed : keyed_) regions.push_back(keyed.region);
    std::size_t digest = 0;
    for (std::size_t begin = 0; begin < keyed_.size();) {
      std::size_t end = begin;
      while (end < keyed_.size() && keyed_[end].cell == keyed_[begin].cell) ++end;
      std::span<Region const> const members(regions.data() + begin, end - begin);
      Cell cell = measured(members);
      if (cell.staging_bytes > limits_.staging_bytes) {
        if (aim > element_) return false;
        fail(ErrorKind::resources,
             "tensor '{}': one step needs {} of memory, {} are available. Raise run.memory.",
             logical_.name, human_bytes(cell.staging_bytes), human_bytes(limits_.staging_bytes));
      }
      cell.first_region = narrow<std::uint32_t>(plan_.regions.size() + begin);
      cell.region_count = narrow<std::uint32_t>(end - begin);
      cell.first_digest = narrow<std::uint32_t>(plan_.digests.size() + digest);
      for (; digest < keyed_digests_.size() && keyed_digests_[digest].cell == keyed_[begin].cell;
           ++digest)
        ++cell.digest_count;
      cells.push_back(cell);
      begin = end;
    }
    RESHARD_EXPECT(digest == keyed_digests_.size());
    commit(regions, cells);
    return true;
  }

  /// Padding that is copied along is read, too, and no part of the digest.
  void add_padding(CellCut const& cut) {
    if (padding_join_.overlaps.empty()) return;
    std::vector<KeyedDigest> padding;
    make_keyed(padding, padding_join_, cut, [this](Overlap const& overlap) {
      return RegionEnds<DigestId>{place(source_, distinct_.blobs[overlap.src]), DigestId::none};
    });
    keyed_digests_.insert(keyed_digests_.end(), padding.begin(), padding.end());
    std::stable_sort(keyed_digests_.begin(), keyed_digests_.end(),
                     [](KeyedDigest const& a, KeyedDigest const& b) { return a.cell < b.cell; });
  }

  static FilePlace place(Catalog const& catalog, std::uint32_t blob) {
    return {catalog.blobs[blob].file, catalog.blobs[blob].offset_bytes};
  }

  /// The regions of a join, cut at the borders of cells, by cell.
  template <class Target, class EndsOf>
  void make_keyed(std::vector<Keyed<Target>>& keyed, Join const& join, CellCut const& cut,
                  EndsOf ends_of) {
    keyed.clear();
    for (std::size_t o = 0; o < join.overlaps.size(); ++o) {
      Overlap const& overlap = join.overlaps[o];
      RegionEnds<Target> const ends = ends_of(overlap);
      auto const whole = join.span_of(o);
      part_.assign(whole.begin(), whole.end());
      split(join, o, cut, 0, 0, overlap.src_offset, overlap.dst_offset,
            [&](std::uint64_t cell, Index src, Index dst) {
              keyed.push_back({cell, make_region(ends, src, dst, part_, element_, dims_)});
            });
    }
    std::stable_sort(keyed.begin(), keyed.end(),
                     [](auto const& a, auto const& b) { return a.cell < b.cell; });
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

  void commit(std::vector<Region>& regions, std::vector<Cell> const& cells) {
    auto const shift = narrow<std::uint32_t>(plan_.dims.size());
    for (Region& region : regions) region.first_dim += shift;
    for (KeyedDigest& keyed : keyed_digests_) {
      keyed.region.first_dim += shift;
      plan_.digests.push_back(keyed.region);
    }
    plan_.dims.insert(plan_.dims.end(), dims_.begin(), dims_.end());
    plan_.regions.insert(plan_.regions.end(), regions.begin(), regions.end());
    plan_.cells.insert(plan_.cells.end(), cells.begin(), cells.end());
    for (Cell const& cell : cells) plan_.target_bytes += cell.target_bytes;
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
  std::vector<KeyedRegion> keyed_;
  std::vector<KeyedDigest> keyed_digests_;
  std::vector<ByteDim> dims_;
  std::vector<OverlapDigit> part_;
};

void add_opaque(Plan& plan, std::span<OpaqueCopy const> opaque, PlanLimits const& limits) {
  bool const digests = limits.digests;
  for (OpaqueCopy const& copy : opaque) {
    if (digests) plan.tensor_bytes.push_back(copy.bytes);
    if (copy.bytes == 0) continue;
    Cell cell;
    cell.first_region = narrow<std::uint32_t>(plan.regions.size());
    cell.region_count = 1;
    cell.first_digest = narrow<std::uint32_t>(plan.digests.size());
    cell.digest_count = digests ? 1 : 0;
    cell.source_bytes = cell.target_bytes = copy.bytes;
    if (digests)
      plan.digests.push_back({copy.src_file,
                              DigestId{narrow<std::uint32_t>(plan.tensor_bytes.size() - 1)},
                              copy.src_offset_bytes, 0, copy.bytes, 0, 0});
    plan.regions.push_back({copy.src_file, copy.dst_file, copy.src_offset_bytes,
                            copy.dst_offset_bytes, copy.bytes, 0, 0});
    cell.staging_bytes = staging_bound(std::span(plan.regions).last(1), {}, limits.alignment);
    plan.cells.push_back(cell);
    plan.source_bytes += copy.bytes;
    plan.target_bytes += copy.bytes;
  }
}

/// Rounded masters have half the bytes of the F32 values.
void add_checks(Plan& plan, Model const& model, Catalog const& source) {
  plan.checks =
      state_checks(model, source, DigestId{narrow<std::uint32_t>(plan.tensor_bytes.size())});
  for (StateCheck const& check : plan.checks)
    if (check.rule == StateRule::rounds_to_weight && check.weight_dtype != DType::f32)
      plan.tensor_bytes.push_back(plan.tensor_bytes[index(check.state)] / 2);
}

/// Target order: by the first target byte of each cell.
void sort_cells(Plan& plan) {
  auto const first_target = [&plan](Cell const& cell) {
    std::tuple<std::uint32_t, std::uint64_t> first{0xffffffffU, 0};
    for (std::uint32_t r = cell.first_region; r < cell.first_region + cell.region_count; ++r)
      first = std::min(first, {plan.regions[r].to, plan.regions[r].dst_offset_bytes});
    return first;
  };
  std::vector<std::pair<std::tuple<std::uint32_t, std::uint64_t>, Cell>> keyed;
  keyed.reserve(plan.cells.size());
  for (Cell const& cell : plan.cells) keyed.emplace_back(first_target(cell), cell);
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](auto const& a, auto const& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < keyed.size(); ++i) plan.cells[i] = keyed[i].second;
}

}  // namespace

namespace {

/// Adds what was planned for some tensors apart, and lets go of it.
void append(Plan& plan, Plan part) {
  auto const regions = narrow<std::uint32_t>(plan.regions.size());
  auto const dims = narrow<std::uint32_t>(plan.dims.size());
  auto const digests = narrow<std::uint32_t>(plan.digests.size());
  for (Region& region : part.regions) region.first_dim += dims;
  for (DigestRegion& digest : part.digests) digest.first_dim += dims;
  for (Cell& cell : part.cells) {
    cell.first_region += regions;
    cell.first_digest += digests;
  }
  plan.regions.insert(plan.regions.end(), part.regions.begin(), part.regions.end());
  plan.dims.insert(plan.dims.end(), part.dims.begin(), part.dims.end());
  plan.cells.insert(plan.cells.end(), part.cells.begin(), part.cells.end());
  plan.digests.insert(plan.digests.end(), part.digests.begin(), part.digests.end());
  plan.source_bytes += part.source_bytes;
  plan.target_bytes += part.target_bytes;
  plan.replicas_dropped += part.replicas_dropped;
  plan.logical_tensors += part.logical_tensors;
  plan.joined_regions += part.joined_regions;
}

/// Memory for all parts at once: growing in steps would take as much again.
void reserve(Plan& plan, std::span<Plan const> parts) {
  std::size_t regions = 0;
  std::size_t dims = 0;
  std::size_t cells = 0;
  std::size_t digests = 0;
  for (Plan const& part : parts) {
    regions += part.regions.size();
    dims += part.dims.size();
    cells += part.cells.size();
    digests += part.digests.size();
  }
  plan.regions.reserve(regions);
  plan.dims.reserve(dims);
  plan.cells.reserve(cells);
  plan.digests.reserve(digests);
}

}  // namespace

Plan make_plan(Model const& model, Catalog const& source, Catalog const& target,
               PlanLimits const& limits, std::span<OpaqueCopy const> opaque) {
  Plan plan;
  plan.alignment = limits.alignment;
  if (limits.digests) plan.tensor_bytes.resize(model.tensors().size());
  std::vector<TensorId> tensors;
  for (std::size_t t = 0; t < model.tensors().size(); ++t)
    if (model.exists(TensorId(t)) && model.volume(model.tensors()[t]) != 0)
      tensors.push_back(TensorId(t));
  std::vector<Plan> parts(tensors.size());
  Workers workers(
      std::clamp<std::size_t>(limits.threads, 1, std::max<std::size_t>(tensors.size(), 1)));
  workers.run(tensors.size(), [&](std::size_t i, std::size_t) {
    TensorPlanner(parts[i], plan.tensor_bytes, model, tensors[i], source, target, limits).run();
  });
  reserve(plan, parts);
  for (Plan& part : parts) append(plan, std::exchange(part, {}));
  add_opaque(plan, opaque, limits);
  if (limits.digests) add_checks(plan, model, source);
  sort_cells(plan);
  return plan;
}

}  // namespace reshard
