#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/layout/pieces/piece.hpp"

namespace reshard {

/// An elementary digit of a joined tensor: (index mod `mod`) div `div` of an axis, after both sides
/// are split at all their radices.
struct JoinDigit {
  AxisId axis = 0;
  Index mod = 0;
  Index div = 1;
};

/// One digit's interval in an overlap: values [first, first + count), with the strides (elements)
/// on both sides.
struct OverlapDigit {
  Index first = 0;
  Index count = 1;
  Index src_stride = 0;
  Index dst_stride = 0;
};

/// Pieces of ONE logical tensor on both sides of a job. `src[i]` and `dst[i]` are indices into the
/// spans given to join(). digits[k] belongs to Join::digits[k]; src_offset and dst_offset
/// (elements) are the places of the overlap's first element.
struct Overlap {
  std::uint32_t src = 0;
  std::uint32_t dst = 0;
  Index src_offset = 0;
  Index dst_offset = 0;
};

struct Join {
  std::vector<JoinDigit> digits;  ///< canonical order: the tensor's axes as given, each from its
                                  ///< coarsest digit to its finest
  std::vector<Overlap> overlaps;
  std::vector<OverlapDigit> spans;  ///< overlaps.size() x digits.size(), row by row
  std::span<OverlapDigit const> span_of(std::size_t overlap) const {
    return {spans.data() + overlap * digits.size(), digits.size()};
  }
};

/// All overlaps of source and target pieces of one logical tensor whose canonical axis order is
/// `order`. No search over all pairs: product-like pieces cost O((S + D) log + overlaps). Copies
/// (repeats) of a target piece give further overlaps; those of a source piece are ignored (copy 0
/// is read). Splits of one axis that do not nest are an Error of kind usage that names the axis and
/// the counts. The digits are also split as the pieces of `splits` would split them: joins of the
/// same three lists have the same digits. Pre: all pieces have the same `tensor`.
Join join(std::span<Piece const> src, std::span<Piece const> dst, std::span<AxisId const> order,
          AxisTable const& axes, std::span<Piece const> splits = {});

/// The domain of a logical tensor along one axis: sorted, disjoint runs of indices (an axis limited
/// to a set), in units of `div`.
struct DomainAxis {
  AxisId axis = 0;
  Index div = 1;  ///< hidden/32 counts blocks
  std::vector<Run> runs;
};

/// The reason for which pieces do not tile a domain: the first bad interval per axis, as text
/// ("layer 3:48, expert 64:128"), and the number of pieces that contain it.
struct TilingFault {
  std::string where;
  int holders = 0;  ///< 0: no piece; 1: one piece, but outside of the domain; else two or more
                    ///< pieces
  std::uint32_t a = 0,
                b = 0;  ///< two of the holders (indices of pieces) when holders >= 2; only a if 1
};

/// Checks that the pieces contain every element of the domain exactly once: nullopt if they do. A
/// piece that has a part of an axis twice or not at all, or an axis that the domain lacks, is an
/// Error of kind usage.
std::optional<TilingFault> tile(std::span<Piece const> pieces, std::span<DomainAxis const> domain,
                                AxisTable const& axes);

/// A strided copy between two blobs, dims outermost first, in elements.
struct CopyDim {
  Index count = 1;
  Index src_stride = 0;
  Index dst_stride = 0;
  friend bool operator==(CopyDim const&, CopyDim const&) = default;
};

/// Drops extents of 1, sorts by target stride (descending), merges neighbours that are one run on
/// both sides. The result replaces the content of `dims`.
void merge(std::span<OverlapDigit const> digits, std::vector<CopyDim>& dims);

}  // namespace reshard
