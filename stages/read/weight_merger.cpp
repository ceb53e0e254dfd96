#include "stages/read/weight_merger.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace reshard {
namespace {

/// Rows of products that are held at a time.
constexpr Index most_rows = 32;

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
        auto const lost = quant::add_scaled(view.dtype, at + begin * size, block.column_stride,
                                            width, products, pair.scale);
        if (lost)
          fail_lost(view, pair, block.element + begin + *lost * block.column_stride,
                    at + (begin + *lost * block.column_stride) * size, products[*lost]);
      }
      row += height;
    }
    column += width;
  }
}

}  // namespace reshard
