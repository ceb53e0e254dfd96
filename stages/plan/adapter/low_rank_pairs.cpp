#include "stages/plan/adapter/low_rank_pairs.hpp"

#include <algorithm>
#include <memory>
#include <set>

#include "core/base/error.hpp"
#include "core/quant/low_rank.hpp"

namespace reshard {
namespace {

std::set<AxisId> axes_of(std::vector<FactorPiece> const& pieces) {
  std::set<AxisId> axes;
  for (FactorPiece const& one : pieces)
    for (PieceDigit const& digit : one.piece.digits) axes.insert(digit.axis);
  axes.erase(rank_axis);
  return axes;
}

Index volume(FactorPart const& part) {
  Index result = 1;
  for (FactorDim const& dim : part.dims) result *= dim.count;
  return result;
}

/// Factors that several ranks have alike are read once.
void add_once(FactorPart part, std::vector<FactorPart>& parts) {
  auto const same_values = [&part](FactorPart const& other) {
    auto const steps = [](FactorPart const& of) {
      std::vector<std::tuple<Index, Index, Index>> result;
      for (FactorDim const& dim : of.dims) result.emplace_back(dim.count, dim.step, dim.rank_step);
      std::ranges::sort(result);
      return result;
    };
    return other.row == part.row && other.rank == part.rank && steps(other) == steps(part);
  };
  if (std::ranges::none_of(parts, same_values)) parts.push_back(std::move(part));
}

void check_factor(AdaptedTensor const& one, std::string const& weight, std::string_view factor,
                  Index rows, Index rank, std::vector<FactorPart> const& parts) {
  Index held = 0;
  for (FactorPart const& part : parts) held += volume(part);
  if (held != rows * rank)
    fail(ErrorKind::source,
         "adapter '{}': its {} holds {} numbers of '{}', which has {} x {} there. A file of "
         "the adapter is missing, or the adapter is of another model: copy the adapter again.",
         one.module, factor, held, weight, rows, rank);
}

}  // namespace

LowRankPairs::Adapted& LowRankPairs::adapted(AdaptedTensor const& one) {
  LogicalTensor const& weight = model_.tensor(one.weight);
  std::set<AxisId> const in_a = axes_of(one.a);
  std::set<AxisId> const in_b = axes_of(one.b);
  Adapted made;
  Index matrices = 1;
  for (std::size_t d = weight.axes.size(); d-- > 0;) {
    AxisId const axis = weight.axes[d].axis;
    Role const role = in_a.contains(axis) == in_b.contains(axis) ? Role::matrix
                      : in_a.contains(axis)                      ? Role::in
                                                                 : Role::out;
    Index& extent = role == Role::out ? made.out : role == Role::in ? made.in : matrices;
    made.roles[axis] = {role, extent};
    extent *= model_.axes()[axis].size;
  }
  auto const known = adapted_.find(one.weight);
  if (known == adapted_.end()) {
    made.pairs = std::make_shared<std::vector<std::uint32_t>>(matrices, no_pair);
    return adapted_.emplace(one.weight, std::move(made)).first->second;
  }
  if (known->second.roles != made.roles)
    fail(ErrorKind::source,
         "adapter '{}': its A and B of '{}' have other axes than those of its other layers. Merge "
         "it with the program that made it.",
         one.module, weight.name);
  return known->second;
}

/// The parts of a factor that a piece holds, by matrix.
void LowRankPairs::add_parts(Adapted const& adapted, FactorPiece const& piece, Role role,
                             std::map<Index, std::vector<FactorPart>>& parts) const {
  FactorPart part{piece.file, piece.offset_bytes, piece.dtype, 0, 0, {}};
  Index const size = bits(piece.dtype) / 8;
  std::vector<std::pair<FactorDim, Index>> stacked;  // and the step from matrix to matrix
  part.offset_bytes += static_cast<std::uint64_t>(piece.piece.offset * size);
  Index first_matrix = 0;
  for (PieceDigit const& digit : piece.piece.digits) {
    if (digit.axis == rank_axis) {
      part.rank += digit.first * digit.div;
      part.dims.push_back({digit.count, digit.stride, 0, digit.div});
      continue;
    }
    AxisRole const& axis = adapted.roles.at(digit.axis);
    Index const step = digit.div * axis.step;
    if (axis.role == role) {
      part.row += digit.first * step;
      part.dims.push_back({digit.count, digit.stride, step, 0});
    } else if (axis.role != Role::matrix) {  // of the weight itself, whose columns are ranks
      part.rank += digit.first * step;
      part.dims.push_back({digit.count, digit.stride, 0, step});
    } else {
      first_matrix += digit.first * step;
      stacked.push_back({{digit.count, digit.stride, 0, 0}, step});
    }
  }
  std::erase_if(part.dims, [](FactorDim const& dim) { return dim.count == 1; });
  std::vector<std::pair<Index, std::uint64_t>> matrices{{first_matrix, part.offset_bytes}};
  for (auto const& [dim, step] : stacked) {
    std::vector<std::pair<Index, std::uint64_t>> more;
    for (auto const& [matrix, offset] : matrices)
      for (Index i = 0; i < dim.count; ++i)
        more.emplace_back(matrix + i * step,
                          offset + static_cast<std::uint64_t>(i * dim.stride * size));
    matrices = std::move(more);
  }
  for (auto const& [matrix, offset] : matrices) {
    part.offset_bytes = offset;
    add_once(part, parts[matrix]);
  }
}

void LowRankPairs::add(AdaptedTensor const& one) {
  Adapted& all = adapted(one);
  std::string const& weight = model_.tensor(one.weight).name;
  std::map<Index, std::vector<FactorPart>> a;
  std::map<Index, std::vector<FactorPart>> b;
  for (FactorPiece const& piece : one.a) add_parts(all, piece, Role::in, a);
  for (FactorPiece const& piece : one.b) add_parts(all, piece, Role::out, b);
  std::map<Index, std::vector<FactorPart>> magnitudes;
  for (FactorPiece const& piece : one.magnitude) add_parts(all, piece, Role::out, magnitudes);
  for (auto& [matrix, parts] : a) {
    std::vector<FactorPart>& of_b = b[matrix];
    check_factor(one, weight, "A", all.in, one.rank, parts);
    check_factor(one, weight, "B", all.out, one.rank, of_b);
    auto const magnitude = magnitudes.find(matrix);
    if (magnitude != magnitudes.end())
      check_factor(one, weight, "magnitude", all.out, 1, magnitude->second);
    std::uint32_t& pair = all.pairs->at(static_cast<std::size_t>(matrix));
    if (pair != no_pair)
      fail(ErrorKind::source,
           "adapter '{}': adapts '{}', and so does '{}'. Merge the two adapters one after the "
           "other.",
           one.module, weight, pairs_[pair].name);
    pair = narrow<std::uint32_t>(pairs_.size());
    MatrixTerms terms = one.terms(place_of(all, matrix));
    pairs_.push_back({std::move(terms.module),
                      one.rank,
                      terms.scale,
                      {all.out, std::move(of_b)},
                      {all.in, std::move(parts)}});
    if (magnitude != magnitudes.end())
      pairs_.back().magnitude = {all.out, std::move(magnitude->second)};
  }
}

MatrixPlace LowRankPairs::place_of(Adapted const& adapted, Index matrix) const {
  MatrixPlace place;
  for (auto const& [axis, role] : adapted.roles)
    if (role.role == Role::matrix)
      place.emplace_back(axis, matrix / role.step % model_.axes()[axis].size);
  return place;
}

MergedPart LowRankPairs::merged_part(Adapted const& adapted, Piece const& piece,
                                     std::string const& name) const {
  MergedPart part;
  part.offset = piece.offset;
  part.pairs = adapted.pairs;
  for (PieceDigit const& digit : piece.digits) {
    AxisRole const& axis = adapted.roles.at(digit.axis);
    Index const step = digit.div * axis.step;
    MergedDim dim{digit.count, digit.stride, 0, 0, 0};
    switch (axis.role) {
      case Role::out:
        part.out += digit.first * step;
        dim.out = step;
        break;
      case Role::in:
        part.in += digit.first * step;
        dim.in = step;
        break;
      case Role::matrix:
        part.pair += digit.first * step;
        dim.pair = step;
        break;
    }
    part.dims.push_back(dim);
  }
  if (!nest(part.dims))
    fail(ErrorKind::source,
         "'{}': its axes interleave in the file, so an adapter cannot be merged into it. Convert "
         "the checkpoint to a Hugging Face folder first.",
         name);
  return part;
}

/// Whether some matrix of the part has a pair.
bool LowRankPairs::touches(Adapted const& adapted, MergedPart const& part) const {
  std::vector<Index> matrices{part.pair};
  for (MergedDim const& dim : part.dims) {
    if (dim.pair == 0) continue;
    std::vector<Index> more;
    for (Index const matrix : matrices)
      for (Index i = 0; i < dim.count; ++i) more.push_back(matrix + i * dim.pair);
    matrices = std::move(more);
  }
  return std::ranges::any_of(matrices, [&](Index matrix) {
    return (*adapted.pairs)[static_cast<std::size_t>(matrix)] != no_pair;
  });
}

void LowRankPairs::check_weights(TensorId tensor, Catalog const& catalog) const {
  std::string const& name = model_.tensor(tensor).name;
  if (catalog.tensors[index(tensor)].empty())
    fail(ErrorKind::source,
         "the adapter adapts '{}', which the source does not have. Name the adapter of "
         "this source.",
         name);
  for (std::uint32_t const blob : catalog.tensors[index(tensor)].blobs())
    if (catalog.blobs[blob].file >= catalog.real_files())
      fail(ErrorKind::source,
           "'{}' is computed from other values of this source, so an adapter cannot be merged "
           "in the same job. Convert the source first, then merge.",
           catalog.blobs[blob].name);
}

/// The lengths of rows are those of complete rows, which may lie in several files.
void LowRankPairs::add_weights(Adapted const& adapted, TensorId tensor, Catalog const& catalog,
                               std::vector<LowRankPair>& pairs) const {
  auto const normalised = [&](std::uint32_t pair) {
    return pair != no_pair && pairs[pair].magnitude.rows > 0;
  };
  if (std::ranges::none_of(*adapted.pairs, normalised)) return;
  std::map<Index, std::vector<FactorPart>> parts;
  TensorPieces const& all = catalog.tensors[index(tensor)];
  for (std::size_t i = 0; i < all.size(); ++i) {
    Blob const& blob = catalog.blobs[all.blob(i)];
    if (!all.is_copy(i))
      add_parts(adapted, {blob.file, blob.offset_bytes, blob.dtype, all[i]}, Role::out, parts);
  }
  for (auto& [matrix, of_matrix] : parts) {
    std::uint32_t const pair = (*adapted.pairs)[static_cast<std::size_t>(matrix)];
    if (normalised(pair)) pairs[pair].weight = {adapted.out, std::move(of_matrix)};
  }
}

void LowRankPairs::merge_into(Catalog& catalog) const {
  auto made = std::make_shared<std::vector<LowRankPair>>(pairs_);
  for (auto const& [tensor, adapted] : adapted_) {
    check_weights(tensor, catalog);
    add_weights(adapted, tensor, catalog, *made);
  }
  std::shared_ptr<std::vector<LowRankPair> const> const pairs = std::move(made);
  std::set<std::uint32_t> files;
  for (LowRankPair const& pair : *pairs)
    for (Factor const* factor : {&pair.a, &pair.b, &pair.magnitude, &pair.weight})
      for (FactorPart const& part : factor->parts) files.insert(part.file);
  struct BlobWork {
    MergedWeight merged;
    Index elements = 0;
    std::vector<std::pair<TensorId, std::size_t>> pieces;
  };
  std::map<std::uint32_t, BlobWork> blobs;
  for (auto const& [tensor, adapted] : adapted_) {
    TensorPieces const& all = catalog.tensors[index(tensor)];
    for (std::size_t i = 0; i < all.size(); ++i) {
      MergedPart part = merged_part(adapted, all[i], catalog.blobs[all.blob(i)].name);
      if (!touches(adapted, part)) continue;
      BlobWork& work = blobs[all.blob(i)];
      work.merged.parts.push_back(std::move(part));
      work.elements = std::max(work.elements, all.reach_of(i));
      work.pieces.emplace_back(tensor, i);
    }
  }
  for (auto& [blob, work] : blobs) {
    Blob const stored = catalog.blobs[blob];
    work.merged.pairs = pairs;
    work.merged.files.assign(files.begin(), files.end());
    SourceView view;
    view.kind = ViewKind::merge;
    view.name = stored.name;
    view.stored = {stored.file, stored.offset_bytes, stored.dtype, {work.elements}};
    view.dtype = stored.dtype;
    view.shape = {work.elements};
    view.merged = std::make_shared<MergedWeight const>(std::move(work.merged));
    auto const number = narrow<std::uint32_t>(catalog.blobs.size());
    catalog.blobs.add({catalog.add_view(std::move(view)), 0, stored.dtype, stored.name});
    for (auto const& [tensor, piece] : work.pieces)
      catalog.tensors[index(tensor)].set_blob(piece, number);
  }
}

}  // namespace reshard
