#include "stages/read/weight_merger.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.hpp"

namespace reshard {
namespace {

/// Rows of products that are held at a time.
constexpr Index most_rows = 32;
/// Rows whose lengths are found at a time.
constexpr Index length_rows = 8;
/// Factors of rows that are held.
constexpr std::size_t most_factors = std::size_t{4} << 20U;

Index element_bytes(DType dtype) { return bits(dtype) / 8; }

[[noreturn]] void fail_lost(SourceView const& view, LowRankPair const& pair, Index element,
                            std::byte const* at, float product) {
  float merged = 0;
  quant::widen(view.dtype, at, 1, 1, &merged, 1);
  fail(
      ErrorKind::source,
      "'{}': with the adapter '{}' element {} becomes {} in {} (its product B · A is {} there, and "
      "its scale {}), and the weight is finite. The adapter's values or its alpha are wrong or too "
      "large for this dtype: check the adapter, or merge it into weights of F32.",
      view.name, pair.name, element, merged, name(view.dtype), product, pair.scale);
}

}  // namespace

void WeightMerger::merge(SourceView const& view, Index first, std::span<std::byte> weights) {
  Index const size = element_bytes(view.dtype);
  Index const count = static_cast<Index>(weights.size()) / size;
  for_each_block(*view.merged, first, count, [&](MergedBlock const& block) {
    merge((*view.merged->pairs)[block.pair], block, view,
          weights.data() + (block.element - first) * size);
  });
}

/// `at`: the first element of the block.
void WeightMerger::merge(LowRankPair const& pair, MergedBlock const& block, SourceView const& view,
                         std::byte* at) {
  Factor const& rows = block.transposed ? pair.a : pair.b;
  Factor const& columns = block.transposed ? pair.b : pair.a;
  Index const size = element_bytes(view.dtype);
  Index const step = std::max<Index>(block.row_step, 1);
  for (Index column = 0; column < block.columns;) {
    auto const right =
        tiles_.tile(columns, pair.rank, block.first_column + column, TileForm::columns);
    Index const first_column = block.first_column + column - right->first;
    Index const width = std::min(block.columns - column, right->rows - first_column);
    products_.resize(static_cast<std::size_t>(most_rows * width));
    for (Index row = 0; row < block.rows;) {
      Index const number = block.first_row + row * block.row_step;
      auto const left = tiles_.tile(rows, pair.rank, number, TileForm::rows);
      Index const in_tile = (left->first + left->rows - number + step - 1) / step;
      Index const height = std::min({block.rows - row, in_tile, most_rows});
      quant::low_rank_products(left->values.data() + (number - left->first) * pair.rank,
                               step * pair.rank, height, right->panels, first_column, width,
                               products_.data(), width);
      for (Index i = 0; i < height; ++i) {
        Index const begin = (row + i) * block.row_stride + column * block.column_stride;
        float const* const products = products_.data() + i * width;
        std::span<float const> of_rows;
        if (pair.magnitude.rows > 0)
          of_rows = block.transposed ? factors(pair, block.first_column + column, width)
                                     : factors(pair, number + i * step, 1);
        auto const lost = of_rows.empty()
                              ? quant::add_scaled(view.dtype, at + begin * size,
                                                  block.column_stride, width, products, pair.scale)
                              : quant::add_normalised(
                                    view.dtype, at + begin * size, block.column_stride, width,
                                    products, pair.scale, of_rows.data(), block.transposed ? 1 : 0);
        if (lost)
          fail_lost(view, pair, block.element + begin + *lost * block.column_stride,
                    at + (begin + *lost * block.column_stride) * size, products[*lost]);
      }
      row += height;
    }
    column += width;
  }
}

std::span<float const> WeightMerger::factors(LowRankPair const& pair, Index first, Index count) {
  if (held_factors_ > most_factors) {
    factors_.clear();
    held_factors_ = 0;
  }
  auto const [found, is_new] = factors_.try_emplace(&pair);
  std::vector<float>& all = found->second;
  if (is_new) {
    all.assign(static_cast<std::size_t>(pair.b.rows), std::numeric_limits<float>::quiet_NaN());
    held_factors_ += all.size();
  }
  for (Index row = first; row < first + count; ++row)
    if (std::isnan(all[static_cast<std::size_t>(row)])) find_factors(pair, row, all);
  return std::span(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

/// Of a row and some behind it.
void WeightMerger::find_factors(LowRankPair const& pair, Index row, std::vector<float>& to) {
  auto const weights = tiles_.tile(pair.weight, pair.a.rows, row, TileForm::rows);
  auto const magnitudes = tiles_.tile(pair.magnitude, 1, row, TileForm::rows);
  auto const left = tiles_.tile(pair.b, pair.rank, row, TileForm::rows);
  Index count = length_rows;
  for (FactorTile const* tile : {weights.get(), magnitudes.get(), left.get()})
    count = std::min(count, tile->first + tile->rows - row);
  Index const width = pair.a.rows;
  sums_.resize(static_cast<std::size_t>(count * width));
  for (Index column = 0; column < width;) {
    auto const right = tiles_.tile(pair.a, pair.rank, column, TileForm::columns);
    quant::low_rank_products(left->values.data() + (row - left->first) * pair.rank, pair.rank,
                             count, right->panels, 0, right->rows, sums_.data() + column, width);
    column += right->rows;
  }
  for (Index i = 0; i < count; ++i)
    to[static_cast<std::size_t>(row + i)] =
        magnitudes->values[static_cast<std::size_t>(row + i - magnitudes->first)] /
        quant::length_of_sum(weights->values.data() + (row + i - weights->first) * width,
                             sums_.data() + i * width, width, pair.scale);
}

}  // namespace reshard
