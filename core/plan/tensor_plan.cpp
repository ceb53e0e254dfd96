#include "core/plan/tensor_plan.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/base/hash/mixed_bits.hpp"
#include "core/base/tables/counted.hpp"
#include "core/layout/pieces/join.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "core/plan/equal/slice_plan.hpp"
#include "core/plan/equal/source_proof.hpp"
#include "core/plan/equal/tensor_slices.hpp"
#include "core/plan/views/region_maker.hpp"

namespace reshard {
namespace {

/// The values that must be equal in two slices for one plan to serve both.
using Signature = std::vector<std::uint64_t>;

/// The parts of a slice in blocks of the tensor's row-major array.
struct BlockParts {
  std::vector<std::uint64_t> numbers;  ///< of the blocks
  std::vector<Piece> parts;            ///< offsets are counted from `base`
  Index base = 0;                      ///< elements
};

/// The plan of some slice, and where it is in the plan of the tensor.
struct KnownSlice {
  Signature signature;
  SlicePlan plan;
  std::uint32_t first_shape = 0;
  std::uint32_t cell_count = 0;
  bool apart = false;  ///< are_apart() of its places
};

class TensorPlanner {
 public:
  /// `tensor_bytes` are those of the complete plan; the rest goes into `plan`, which is empty.
  TensorPlanner(Plan& plan, std::span<std::uint64_t> tensor_bytes, Model const& model,
                TensorId tensor, Catalog const& source, Catalog const& target,
                PlanLimits const& limits, TargetCover cover)
      : plan_(plan),
        tensor_bytes_(tensor_bytes),
        model_(model),
        tensor_(tensor),
        logical_(model.tensor(tensor)),
        source_(source),
        target_(target),
        limits_(limits),
        cover_(cover),
        wanted_(target.tensors[index(tensor)]),
        distinct_(distinct_pieces(source.tensors[index(tensor)], source)),
        domain_(model.domain(logical_)) {}

  PlanScope run() {
    if (distinct_.empty()) refuse();
    element_ = element_bytes(distinct_, source_, logical_.name);
    for (std::uint32_t const number : wanted_.blobs())
      RESHARD_EXPECT(target_.blobs.dtype(number) == source_.blobs.dtype(distinct_.blob(0)));
    if (limits_.digests) {
      blocks_ = logical_pieces(model_, tensor_);
      logical_count_ = blocks_.size();
      std::vector<Piece> const padding = padding_pieces(model_, tensor_);
      blocks_.insert(blocks_.end(), padding.begin(), padding.end());
    }
    TensorSlices const slices(model_.axes(), domain_, *distinct_.all, distinct_.chosen, wanted_,
                              target_, blocks_);
    if (!slices.source_has_all(domain_)) refuse();
    settle_order(slices);
    plan_.places.reserve(slices.pieces());
    Slice slice;
    for (std::size_t s = 0; s < slices.size(); ++s) {
      slices.make(s, slice);
      add(slices, slice);
    }
    finish();
    bool const alone = slices.size() == 1 && slices.pieces() == 2 && known_.size() == 1;
    return alone && known_.front()->plan.measured.empty() ? PlanScope::any_places
                                                          : PlanScope::these_places;
  }

 private:
  /// Throws the Error about pieces that do not contain every element once.
  [[noreturn]] void refuse() const {
    prove_whole(model_, logical_, distinct_, source_);
    prove_target();
    RESHARD_EXPECT(false);
    std::abort();
  }

  /// Proves that the target's stored tensors, not counting replicas and copies, contain every
  /// element once, so that none is lost.
  void prove_target() const {
    auto const fault = tile(distinct_pieces(wanted_, target_).made(), domain_, model_.axes());
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

  /// The axes inside of a slice, those with the longest strides in the source first.
  void settle_order(TensorSlices const& slices) {
    for (DomainAxis const& axis : domain_)
      if (!slices.is_cut(axis.axis)) inner_domain_.push_back(axis);
    for (AxisId const axis : axis_order(logical_))
      if (!slices.is_cut(axis)) order_.push_back(axis);
    // An axis with one index in each source piece is as wide as in the target: names of layers and
    // experts come first, columns that are stored apart last.
    Piece const stored = distinct_[0];
    std::optional<Piece> const written =
        wanted_.empty() ? std::nullopt : std::optional<Piece>(wanted_[0]);
    auto const stride_in = [](Piece const& piece, AxisId axis) {
      Index stride = 0;
      for (PieceDigit const& digit : piece.digits)
        if (digit.axis == axis && digit.count > 1) stride = std::max(stride, digit.stride);
      return stride;
    };
    auto const widest = [&](AxisId axis) {
      Index stride = stride_in(stored, axis);
      if (stride == 0 && written) stride = stride_in(*written, axis);
      return stride == 0 ? std::numeric_limits<Index>::max() : stride;
    };
    std::stable_sort(order_.begin(), order_.end(),
                     [&](AxisId a, AxisId b) { return widest(a) > widest(b); });
  }

  void add(TensorSlices const& slices, Slice const& slice) {
    bool const lacks_target = slice.target.empty() && cover_ == TargetCover::whole;
    if (slice.source.empty() || lacks_target) refuse();
    BlockParts const logical = parts_of(slices, slice.key, 0, logical_count_);
    BlockParts const padding = parts_of(slices, slice.key, logical_count_, blocks_.size());
    places_.clear();
    for (SlicePiece const& piece : slice.source)
      places_.push_back(place(source_, distinct_.all->blob(piece.piece), piece.offset));
    for (SlicePiece const& piece : slice.target)
      places_.push_back(place(target_, wanted_.blob(piece.piece), piece.offset));
    SlicePlaces const places{std::span(places_).first(slice.source.size()),
                             std::span(places_).subspan(slice.source.size())};
    auto const base = static_cast<std::uint64_t>(logical.base) * element_;
    Signature const signature = signature_of(slice, logical, padding);
    KnownSlice const* known = find(signature);
    if (known == nullptr || !add_cells(*known, places, base)) {
      known = &remember(signature, planned(slice, logical, padding, places), are_apart(places));
      RESHARD_EXPECT(add_cells(*known, places, base));
    }
    if (known->cell_count > 0) plan_.places.add(places_);
    plan_.joined_regions += known->plan.overlaps;
  }

  BlockParts parts_of(TensorSlices const& slices, std::uint64_t key, std::size_t begin,
                      std::size_t end) const {
    BlockParts result;
    for (std::size_t b = begin; b < end; ++b)
      if (auto part = slices.part_of(blocks_[b], key)) {
        result.numbers.push_back(b);
        result.parts.push_back(std::move(*part));
      }
    if (result.parts.empty()) return result;
    result.base = std::ranges::min(result.parts, {}, &Piece::offset).offset;
    for (Piece& part : result.parts) part.offset -= result.base;
    return result;
  }

  FilePlace place(Catalog const& catalog, std::uint32_t blob, Index offset) const {
    FilePlace const found = catalog.blobs.place(blob);
    return {found.offset_bytes + static_cast<std::uint64_t>(offset) * element_, found.file};
  }

  Signature signature_of(Slice const& slice, BlockParts const& logical,
                         BlockParts const& padding) const {
    Signature signature;
    signature.reserve(4 + slice.source.size() + slice.target.size());
    auto const word = [](SlicePiece const& piece) {
      return std::uint64_t{piece.frame} << 32U | piece.form;
    };
    signature.push_back(slice.source.size());
    for (SlicePiece const& piece : slice.source) signature.push_back(word(piece));
    signature.push_back(slice.target.size());
    for (SlicePiece const& piece : slice.target) signature.push_back(word(piece));
    if (wanted_.has_copies())
      for (SlicePiece const& piece : slice.target)
        signature.push_back(std::uint64_t{wanted_.is_copy(piece.piece)});
    for (BlockParts const* blocks : {&logical, &padding}) {
      signature.push_back(blocks->numbers.size());
      for (std::size_t i = 0; i < blocks->numbers.size(); ++i) {
        signature.push_back(blocks->numbers[i]);
        signature.push_back(static_cast<std::uint64_t>(blocks->parts[i].offset));
      }
    }
    return signature;
  }

  static std::uint64_t hash_of(Signature const& signature) {
    std::uint64_t hash = signature.size();
    for (std::uint64_t const word : signature) hash = mixed_bits(hash ^ word) + hash;
    return hash;
  }

  KnownSlice const* find(Signature const& signature) const {
    KnownSlice const* found = nullptr;  // the last of several: the earlier ones need more memory
    auto const [begin, end] = by_hash_.equal_range(hash_of(signature));
    for (auto at = begin; at != end; ++at)
      if (at->second->signature == signature &&
          (found == nullptr || found->first_shape < at->second->first_shape))
        found = at->second;
    return found;
  }

  SlicePlan planned(Slice const& slice, BlockParts const& logical, BlockParts const& padding,
                    SlicePlaces const& places) const {
    SlicePieces pieces{{}, {}, logical.parts, padding.parts};
    for (SlicePiece const& piece : slice.source) pieces.source.push_back(piece.inner(tensor_));
    for (SlicePiece const& piece : slice.target) pieces.target.push_back(piece.inner(tensor_));
    if (tile(pieces.source, inner_domain_, model_.axes())) refuse();
    if (cover_ == TargetCover::whole && tile(distinct_target(slice), inner_domain_, model_.axes()))
      refuse();
    return plan_slice(pieces, places, {logical_.name, order_, model_.axes(), element_, limits_});
  }

  std::vector<Piece> distinct_target(Slice const& slice) const {
    std::unordered_set<std::uint64_t> seen;
    std::vector<Piece> pieces;
    for (SlicePiece const& piece : slice.target)
      if (!wanted_.is_copy(piece.piece) &&
          seen.insert(frame_hash(piece.frame) + form_hash(piece.form)).second)
        pieces.push_back(piece.inner(tensor_));
    return pieces;
  }

  /// Whether each piece is in a file of its own: the staging of a cell does not depend on the files
  /// then.
  bool are_apart(SlicePlaces const& places) const {
    if (limits_.alignment.io_bytes != 1) return false;
    auto const distinct = [](std::span<FilePlace const> side) {
      std::vector<std::uint32_t> files;
      for (FilePlace const& place : side) files.push_back(place.file);
      std::ranges::sort(files);
      return std::ranges::adjacent_find(files) == files.end();
    };
    return distinct(places.source) && distinct(places.target);
  }

  KnownSlice const& remember(Signature signature, SlicePlan plan, bool apart) {
    auto known = std::make_unique<KnownSlice>();
    known->apart = apart;
    known->first_shape = narrow<std::uint32_t>(plan_.cells.shapes().size());
    std::uint64_t const hash = hash_of(signature);
    known->signature = std::move(signature);
    known->cell_count = narrow<std::uint32_t>(plan.shapes.size());
    SlicePlan kept = plan.measured.empty() ? SlicePlan() : plan;
    append_shapes(plan_, {plan.shapes, plan.regions, plan.digests, plan.dims});
    kept.overlaps = plan.overlaps;
    known->plan = std::move(kept);
    known_.push_back(std::move(known));
    by_hash_.emplace(hash, known_.back().get());
    return *known_.back();
  }

  /// The cells of a slice that is like a known one; false, without a change, if one of them would
  /// need more memory at these places.
  bool add_cells(KnownSlice const& known, SlicePlaces const& places, std::uint64_t base) {
    bool const as_known = known.apart && !known.plan.measured.empty() && are_apart(places);
    std::vector<std::uint64_t> staging;  // of the cells of known.plan.measured
    for (std::uint32_t const cell : known.plan.measured) {
      if (as_known) break;
      auto const bytes = staging_of(known.plan, cell, places, limits_);
      if (!bytes) return false;
      staging.push_back(*bytes);
    }
    auto const first = narrow<std::uint32_t>(plan_.places.size());
    std::size_t next = 0;
    for (std::uint32_t cell = 0; cell < known.cell_count; ++cell) {
      std::uint32_t shape = known.first_shape + cell;
      if (next < staging.size() && known.plan.measured[next] == cell)
        shape = plan_.cells.with_staging(shape, staging[next++]);
      plan_.target_bytes += plan_.cells.shape(shape).target_bytes;
      plan_.cells.add(shape, first, digest_of(tensor_), base);
    }
    return true;
  }

  void finish() {
    plan_.replicas_dropped += distinct_.dropped;
    ++plan_.logical_tensors;
    plan_.source_bytes += static_cast<std::uint64_t>(model_.volume(logical_)) * element_;
    if (limits_.digests)
      tensor_bytes_[index(tensor_)] =
          static_cast<std::uint64_t>(logical_volume(model_, tensor_)) * element_;
  }

  Plan& plan_;
  std::span<std::uint64_t> tensor_bytes_;
  Model const& model_;
  TensorId tensor_;
  LogicalTensor const& logical_;
  Catalog const& source_;
  Catalog const& target_;
  PlanLimits const& limits_;
  TargetCover cover_;
  TensorPieces const& wanted_;
  Distinct distinct_;
  std::vector<DomainAxis> domain_;
  std::uint64_t element_ = 1;
  std::vector<Piece> blocks_;  ///< of the row-major array: those in digests, then padding
  std::size_t logical_count_ = 0;
  std::vector<DomainAxis> inner_domain_;  ///< of a slice
  std::vector<AxisId> order_;             ///< of a slice, for join()
  std::vector<FilePlace> places_;         ///< of the slice that is being added
  std::vector<std::unique_ptr<KnownSlice>> known_;
  std::unordered_multimap<std::uint64_t, KnownSlice const*> by_hash_;
};

}  // namespace

PlanScope plan_tensor(Plan& plan, std::span<std::uint64_t> tensor_bytes, Model const& model,
                      TensorId tensor, Catalog const& source, Catalog const& target,
                      PlanLimits const& limits, TargetCover cover) {
  return TensorPlanner(plan, tensor_bytes, model, tensor, source, target, limits, cover).run();
}

}  // namespace reshard
