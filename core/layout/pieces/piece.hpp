#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/ids.hpp"
#include "core/layout/axis.hpp"
#include "core/layout/layout_expr.hpp"
#include "core/layout/pieces/piece_digits.hpp"

namespace reshard {

/// A repeat of the values of a piece: `count` times, `stride` elements apart ('*axis').
struct PieceCopy {
  Index count = 1;
  Index stride = 0;
  friend bool operator==(PieceCopy const&, PieceCopy const&) = default;
};

/// An affine part of a stored blob: the element of `tensor` with digit values first+i is at offset
/// + sum(i * stride), in elements.
struct Piece {
  TensorId tensor{};  ///< the logical tensor
  PieceDigits digits;
  std::vector<PieceCopy> copies;
  Index offset = 0;
  friend bool operator==(Piece const&, Piece const&) = default;
};

/// Elements of a blob that belong to no tensor: a strided block, in elements.
struct FillBlock {
  Index offset = 0;
  std::vector<PieceCopy> dims;  ///< (count, stride), outermost first
  friend bool operator==(FillBlock const&, FillBlock const&) = default;
};

/// The value of an expression under given shares.
struct Layout {
  std::vector<Index> shape;  ///< extents of the stored dimensions
  std::vector<Piece> pieces;
  std::vector<FillBlock> fills;
};

/// The names of a model, for evaluation.
struct LayoutScope {
  AxisTable const* axes = nullptr;
  /// A logical tensor by its dotted name; nullopt refuses it.
  std::function<std::optional<TensorId>(std::string_view)> tensor;
  /// A size by its name (for `axis%n`); nullopt if unknown.
  std::function<std::optional<Index>(std::string_view)> size;
};

/// The shape of the stored tensor and its pieces, strides row-major of the shape, or `strides` (in
/// elements, one per dimension) when given. A tensor that is not cut has one piece per alternative
/// and combination of runs. An illegal share (a cut inside a digit's block), an unknown axis or
/// size is an Error of kind usage with the expression in it.
Layout evaluate(LayoutExpr const& expr, LayoutScope const& scope, Shares const& shares,
                std::span<Index const> strides = {});

/// As evaluate(), for a box of the stored tensor: rows [begin[d], end[d]) of every dimension;
/// strides row-major of the box, offset 0 its first element. Boxes may cut inside products and
/// alternatives.
Layout evaluate_box(LayoutExpr const& expr, LayoutScope const& scope, Shares const& shares,
                    std::span<Index const> begin, std::span<Index const> end,
                    std::span<Index const> strides = {});

/// As evaluate(), for the flat element range [begin, end) of the row-major tensor; offset 0 is
/// element `begin`.
Layout evaluate_flat(LayoutExpr const& expr, LayoutScope const& scope, Shares const& shares,
                     Index begin, Index end);

/// The rows of the global stored tensor that a share contains (global formats): per stored
/// dimension, the runs of rows in the order of the share, neighbours merged. The share is the cross
/// product of the dimensions' rows; padding (`fill` runs) has no rows there.
///
///   (gate: inter | up: inter) hidden, inter 8, share [4, 8): rows [4, 8) and [12, 16) of dimension
///   0, all of dimension 1.
std::vector<std::vector<Run>> share_rows(LayoutExpr const& expr, LayoutScope const& scope,
                                         Shares const& shares);

}  // namespace reshard
