#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"

namespace reshard::quant {

/// Columns that are computed side by side, whose values of one rank lie next to each other.
inline constexpr Index panel_columns = 16;

/// A matrix [columns, rank] in the order in which products read it: panels of panel_columns
/// columns, in each the values of rank 0 of all its columns, then those of rank 1, …; the last
/// panel is filled up with zeros.
class Panels {
 public:
  Panels() = default;
  /// `values` is [columns, rank], row-major.
  Panels(std::span<float const> values, Index columns, Index rank);
  Index columns() const { return columns_; }
  Index rank() const { return rank_; }
  /// rank x panel_columns values.
  float const* panel(Index number) const { return values_.data() + number * rank_ * panel_columns; }
  std::size_t bytes() const { return values_.size() * sizeof(float); }

 private:
  Index columns_ = 0;
  Index rank_ = 0;
  std::vector<float> values_;
};

/// to[i * to_stride + j - first] = sum over k of rows[i][k] * columns[j][k], for `count` columns j
/// from `first` on and every row i: F32 throughout, beginning with 0, k ascending, each product and
/// each sum rounded to the nearest, none fused. So the value of an element depends on its row and
/// column alone. Row i begins at rows + i * row_stride. Pre: 0 <= first, first + count <=
/// columns.columns().
void low_rank_products(float const* rows, Index row_stride, Index row_count, Panels const& columns,
                       Index first, Index count, float* to, Index to_stride);

/// Whether weights of this dtype can be merged: F32, BF16 and F16.
bool mergeable(DType dtype);

/// Values of a stored dtype that F32 holds, widened. `from` and `to` count in elements.
/// Pre: mergeable(dtype).
void widen(DType dtype, std::byte const* from, Index from_stride, Index count, float* to,
           Index to_stride);

/// weight + scale * delta in place, for `count` elements of a weight of this dtype that lie
/// `stride` elements apart: product and sum are each rounded to F32, the result is rounded to the
/// dtype (to nearest, of two the even one), a NaN is the canonical one. The first of them that was
/// finite and is not any more; nothing where there is none. Pre: mergeable(dtype).
std::optional<Index> add_scaled(DType dtype, std::byte* weights, Index stride, Index count,
                                float const* delta, float scale);

/// As add_scaled, and each sum is multiplied by factors[i * factor_step], rounded to F32 as well.
std::optional<Index> add_normalised(DType dtype, std::byte* weights, Index stride, Index count,
                                    float const* delta, float scale, float const* factors,
                                    Index factor_step);

/// The length of the row that add_normalised multiplies: the squares of the sums weight + scale *
/// delta, each rounded to F32, are added in F64 in order, and the root is rounded to F32.
float length_of_sum(float const* weights, float const* delta, Index count, float scale);

}  // namespace reshard::quant
