#include "core/plan/equal/digest_work.hpp"

#include <algorithm>
#include <unordered_map>

#include "core/base/tables/integers.hpp"
#include "core/layout/pieces/join.hpp"
#include "core/plan/cells/part_plan.hpp"
#include "core/plan/equal/alike_tensors.hpp"
#include "core/plan/equal/source_proof.hpp"
#include "core/plan/views/region_maker.hpp"

namespace reshard {
namespace {

Index extent_of(DomainAxis const& axis) {
  Index extent = 0;
  for (Run const& run : axis.runs) extent += run.end - run.begin;
  return extent;
}

/// Collects the shares and regions of one tensor after the other.
class Worker {
 public:
  Worker(Model const& model, Catalog const& catalog, DigestScope scope)
      : model_(model), catalog_(catalog), scope_(scope) {}

  DigestWork run() {
    std::size_t const tensors = model_.tensors().size();
    work_.tensor_bytes.resize(tensors);
    work_.shares.reserve(tensors);
    work_.regions.reserve(tensors);
    AlikeTensors alike(model_, {&catalog_, nullptr});
    for (std::size_t t = 0; t < tensors; ++t) {
      if (!model_.exists(TensorId(t))) continue;
      if (auto const like = alike.like(TensorId(t)))
        add_like(TensorId(t), *like);
      else if (model_.volume(model_.tensors()[t]) > 0)
        add_first(TensorId(t));
    }
    return std::move(work_);
  }

 private:
  /// The share and the regions of a tensor, for later tensors that are like it.
  struct Known {
    std::size_t share = 0;
    std::size_t first_region = 0;
    std::size_t regions = 0;
  };

  void add_first(TensorId t) {
    Known known{work_.shares.size(), work_.regions.size(), 0};
    add_tensor(t);
    known.regions = work_.regions.size() - known.first_region;
    if (work_.shares.size() == known.share + 1) known_.emplace(t, known);
  }

  /// Adds a tensor that is like a known one; it has no elements if that one is not known.
  void add_like(TensorId t, TensorId like) {
    auto const found = known_.find(like);
    if (found == known_.end()) return;
    Known const& known = found->second;
    auto const share = ShareId(work_.shares.size());
    PieceShare own = work_.shares[known.share];
    Blob const& before = catalog_.blobs[own.blob];
    own.digest = digest_of(t);
    own.blob = catalog_.tensors[index(t)].blob(0);
    own.same_as = share;
    work_.shares.push_back(own);
    Blob const& blob = catalog_.blobs[own.blob];
    for (std::size_t r = known.first_region; r < known.first_region + known.regions; ++r) {
      ShareRegion region = work_.regions[r];
      region.src_file = blob.file;
      region.src_offset_bytes += blob.offset_bytes - before.offset_bytes;
      region.to = share;
      work_.regions.push_back(region);
    }
    work_.tensor_bytes[index(t)] = work_.tensor_bytes[index(like)];
  }

  void add_tensor(TensorId t) {
    TensorPieces const& all = catalog_.tensors[index(t)];
    Distinct const distinct = distinct_pieces(all, catalog_);
    prove_whole(model_, model_.tensor(t), distinct, catalog_);
    std::uint64_t const element = element_bytes(distinct, catalog_, model_.tensor(t).name);
    work_.tensor_bytes[index(t)] = static_cast<std::uint64_t>(logical_volume(model_, t)) * element;
    if (scope_ == DigestScope::distinct)
      for (std::size_t i = 0; i < distinct.size(); ++i) add_share(t, distinct[i], distinct.blob(i));
    else
      add_all(t, all);
    add_regions(t, element);
  }

  void add_share(TensorId tensor, Piece piece, std::uint32_t blob) {
    pieces_.push_back(std::move(piece));
    work_.shares.push_back({digest_of(tensor), blob, ShareId(work_.shares.size())});
  }

  void add_all(TensorId tensor, TensorPieces const& all) {
    std::unordered_map<std::uint64_t, ShareId> counting;  // box -> the share that counts
    for (bool const copies : {false, true})
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (all.is_copy(i) != copies) continue;
        auto const share = ShareId(work_.shares.size());
        std::uint64_t const box = all.box(i);
        if (copies && !counting.contains(box)) continue;
        add_share(tensor, all[i], all.blob(i));
        work_.shares.back().piece = narrow<std::uint32_t>(i);
        work_.shares.back().same_as = counting.emplace(box, share).first->second;
      }
  }

  /// Adds the regions of pieces_, whose shares are the last ones.
  void add_regions(TensorId t, std::uint64_t element) {
    std::vector<Piece> const logical = logical_pieces(model_, t);
    std::vector<AxisId> const order = axis_order(model_.tensor(t));
    std::size_t const first_share = work_.shares.size() - pieces_.size();
    RegionMaker maker(element, work_.dims);
    Join const joined = join(pieces_, logical, order, model_.axes());
    for (std::size_t o = 0; o < joined.overlaps.size(); ++o) {
      Overlap const& overlap = joined.overlaps[o];
      auto const share = ShareId(first_share + overlap.src);
      Blob const& blob = catalog_.blobs[work_.share(share).blob];
      RegionEnds<ShareId> const ends{{blob.offset_bytes, blob.file}, share};
      work_.regions.push_back(
          maker.make(ends, overlap.src_offset, overlap.dst_offset, joined.span_of(o)));
    }
    pieces_.clear();
  }

  Model const& model_;
  Catalog const& catalog_;
  DigestScope scope_;
  std::vector<Piece> pieces_;
  std::unordered_map<TensorId, Known> known_;
  DigestWork work_;
};

}  // namespace

std::vector<Index> logical_shape(Model const& model, TensorId tensor) {
  std::vector<Index> shape;
  for (DomainAxis const& axis : model.meant_domain(model.tensor(tensor)))
    shape.push_back(extent_of(axis));
  return shape;
}

Index logical_volume(Model const& model, TensorId tensor) {
  Index volume = 1;
  for (Index const extent : logical_shape(model, tensor)) volume *= extent;
  return volume;
}

std::vector<Piece> row_major_pieces(std::span<DomainAxis const> domain, Model const& model,
                                    TensorId tensor) {
  std::vector<Piece> pieces{{tensor, {}, {}, 0}};
  Index stride = 1;
  for (std::size_t d = domain.size(); d-- > 0;) {
    DomainAxis const& axis = domain[d];
    Index const size = model.axes()[axis.axis].size;
    std::vector<Piece> longer;
    for (Piece const& piece : pieces) {
      Index before = 0;
      for (Run const& run : axis.runs) {
        Piece part = piece;
        part.digits.push_back({axis.axis, (size + axis.div - 1) / axis.div * axis.div, axis.div,
                               run.begin, run.end - run.begin, stride});
        part.offset += before * stride;
        before += run.end - run.begin;
        longer.push_back(std::move(part));
      }
    }
    pieces = std::move(longer);
    stride *= extent_of(axis);
  }
  return pieces;
}

std::vector<Piece> logical_pieces(Model const& model, TensorId tensor) {
  return row_major_pieces(model.meant_domain(model.tensor(tensor)), model, tensor);
}

std::vector<Piece> padding_pieces(Model const& model, TensorId tensor) {
  LogicalTensor const& logical = model.tensor(tensor);
  std::vector<DomainAxis> domain = model.domain(logical);
  std::vector<DomainAxis> const meant = model.meant_domain(logical);
  std::size_t padded = 0;
  for (std::size_t d = 0; d < domain.size(); ++d) {
    if (domain[d].runs == meant[d].runs) continue;
    ++padded;
    Index const end =
        meant[d].runs.empty() ? 0 : meant[d].runs.back().end;  // padding follows the meant elements
    for (Run& run : domain[d].runs) run.begin = std::min(std::max(run.begin, end), run.end);
    std::erase_if(domain[d].runs, [](Run const& run) { return run.begin == run.end; });
  }
  return padded == 1 ? row_major_pieces(domain, model, tensor) : std::vector<Piece>();
}

namespace {

/// Repeats the counting shares of a tensor, and their regions, for another digest.
void repeat_shares(DigestWork& work, DigestId of, DigestId digest, ShareKind kind, DType dtype) {
  std::unordered_map<ShareId, ShareId> repeated;
  for (std::size_t s = 0, count = work.shares.size(); s < count; ++s) {
    PieceShare share = work.shares[s];
    if (share.digest != of || share.kind != ShareKind::bytes || share.same_as != ShareId(s))
      continue;
    auto const own = ShareId(work.shares.size());
    repeated.emplace(ShareId(s), own);
    work.shares.push_back({digest, share.blob, own, kind, dtype});
  }
  for (std::size_t r = 0, count = work.regions.size(); r < count; ++r) {
    auto const found = repeated.find(work.regions[r].to);
    if (found == repeated.end()) continue;
    ShareRegion region = work.regions[r];
    region.to = found->second;
    work.regions.push_back(region);
  }
}

}  // namespace

std::vector<DigestId> add_state_shares(DigestWork& work, std::span<StateCheck const> checks) {
  std::size_t next = work.tensor_bytes.size();
  for (StateCheck const& check : checks)
    if (check.rounded != DigestId::none) next = std::max(next, index(check.rounded) + 1);
  std::vector<DigestId> moments(checks.size(), DigestId::none);
  for (std::size_t c = 0; c < checks.size(); ++c) {
    StateCheck const& check = checks[c];
    DigestId const state = digest_of(check.state);
    if (check.rounded == state) continue;
    bool const rounds = check.rule == StateRule::rounds_to_weight;
    DigestId const digest = rounds ? check.rounded : DigestId(next++);
    if (!rounds) moments[c] = digest;
    work.tensor_bytes.resize(std::max(work.tensor_bytes.size(), index(digest) + 1));
    work.tensor_bytes[index(digest)] = work.tensor_bytes[index(state)];
    repeat_shares(work, state, digest, rounds ? ShareKind::rounded : ShareKind::moments,
                  check.weight_dtype);
  }
  return moments;
}

DigestWork digest_work(Model const& model, Catalog const& catalog, DigestScope scope) {
  if (catalog.views.empty()) return Worker(model, catalog, scope).run();
  Catalog stored = catalog;
  for (std::size_t b = 0; b < stored.blobs.size(); ++b) {
    if (stored.blobs.file(b) < catalog.real_files()) continue;
    SourceView const& view = catalog.views[stored.blobs.file(b) - catalog.real_files()];
    RESHARD_EXPECT(view.kind == ViewKind::round && view.stored.dtype == DType::f32);
    stored.blobs.set(
        b, {view.stored.file, view.stored.offset_bytes, view.stored.dtype, stored.blobs.name(b)});
  }
  DigestWork work = Worker(model, stored, scope).run();
  for (PieceShare& share : work.shares)
    if (Blob const& blob = catalog.blobs[share.blob]; blob.file >= catalog.real_files()) {
      share.kind = ShareKind::rounded;
      share.dtype = blob.dtype;
    }
  return work;
}

}  // namespace reshard
