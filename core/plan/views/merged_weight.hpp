#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"

namespace reshard {

/// A dimension of a part of a factor: `count` values, `stride` elements of the file apart, that are
/// `step` rows and `rank_step` ranks apart in the factor.
struct FactorDim {
  Index count = 1;
  Index stride = 0;
  Index step = 0;
  Index rank_step = 0;
  friend bool operator==(FactorDim const&, FactorDim const&) = default;
};

/// An affine part of a factor: its first value is in row `row` and rank `rank`, at offset_bytes of
/// a file.
struct FactorPart {
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  DType dtype = DType::f32;
  Index row = 0;
  Index rank = 0;
  std::vector<FactorDim> dims;
  friend bool operator==(FactorPart const&, FactorPart const&) = default;
};

/// A matrix [rows, rank] in files.
struct Factor {
  Index rows = 0;
  std::vector<FactorPart> parts;
};

/// The addend of an adapter for a matrix [out, in]: scale * B * A. A is transposed, [in, rank].
/// With a magnitude (DoRA) each row of the sum gets that length: it is divided by its own.
struct LowRankPair {
  std::string name;  ///< of the adapted module, for messages
  Index rank = 0;
  float scale = 1;
  Factor b;
  Factor a;
  Factor magnitude = {};  ///< [out, 1]; without rows: none
  Factor weight = {};     ///< with a magnitude: the matrix itself, [out, in], for the lengths
};

/// A dimension of a part of a merged weight: `count` elements, `stride` apart in the stored tensor,
/// that are `out` rows of B, `in` rows of A and `pair` matrices apart.
struct MergedDim {
  Index count = 1;
  Index stride = 0;
  Index out = 0;
  Index in = 0;
  Index pair = 0;
  friend bool operator==(MergedDim const&, MergedDim const&) = default;
};

/// An affine part of a merged weight; its first element is `offset` in the stored tensor. Matrix i
/// has the pair pairs[i], or none (no_pair): then it is unchanged. Dimensions are outermost first:
/// the stride of each exceeds the reach of those after it (nested()).
struct MergedPart {
  Index offset = 0;
  Index out = 0;
  Index in = 0;
  Index pair = 0;
  std::vector<MergedDim> dims;
  std::shared_ptr<std::vector<std::uint32_t> const> pairs;
};

inline constexpr std::uint32_t no_pair = static_cast<std::uint32_t>(-1);

/// The addends of a stored tensor. Elements in no part are unchanged.
struct MergedWeight {
  std::vector<MergedPart> parts;
  std::shared_ptr<std::vector<LowRankPair> const> pairs;
  std::vector<std::uint32_t> files;  ///< of all factors, ascending
};

/// Elements of a part in which B's row depends on one of two dimensions and A's on the other: the
/// element (i, j) is element + i * row_stride + j * column_stride of the stored tensor. Rows count
/// in B and columns in A, or the other way round when `transposed`.
struct MergedBlock {
  std::uint32_t pair = 0;
  bool transposed = false;
  Index element = 0;
  Index rows = 1;
  Index row_stride = 0;
  Index first_row = 0;  ///< in its factor
  Index row_step = 0;
  Index columns = 1;
  Index column_stride = 0;
  Index first_column = 0;  ///< in its factor, where consecutive columns are adjacent
};

/// The dimensions in the order of MergedPart, without those of one element, neighbours that are one
/// run joined. False if two of them interleave, so that no order nests.
bool nest(std::vector<MergedDim>& dims);

/// The blocks of the elements [first, first + count) of a merged weight.
void for_each_block(MergedWeight const& weight, Index first, Index count,
                    std::function<void(MergedBlock const&)> const& take);

}  // namespace reshard
