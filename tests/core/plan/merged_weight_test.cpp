#include "core/plan/views/merged_weight.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

namespace reshard {
namespace {

/// Pair, row of B and row of A of an element.
using Use = std::tuple<std::uint32_t, Index, Index>;
using Uses = std::map<Index, Use>;

MergedPart part_of(Index offset, std::vector<MergedDim> dims, std::vector<std::uint32_t> pairs) {
  MergedPart part{offset, 0, 0, 0, std::move(dims), {}};
  part.pairs = std::make_shared<std::vector<std::uint32_t> const>(std::move(pairs));
  return part;
}

void count_all(MergedPart const& part, std::size_t d, MergedDim at, Uses& uses) {
  if (d == part.dims.size()) {
    std::uint32_t const pair = (*part.pairs)[static_cast<std::size_t>(at.pair)];
    if (pair != no_pair) uses[at.stride] = {pair, at.out, at.in};
    return;
  }
  MergedDim const& dim = part.dims[d];
  for (Index i = 0; i < dim.count; ++i)
    count_all(part, d + 1,
              {1, at.stride + i * dim.stride, at.out + i * dim.out, at.in + i * dim.in,
               at.pair + i * dim.pair},
              uses);
}

/// Element by element, as the definition of a part says.
Uses slow_uses(MergedWeight const& weight) {
  Uses uses;
  for (MergedPart const& part : weight.parts)
    count_all(part, 0, {1, part.offset, part.out, part.in, part.pair}, uses);
  return uses;
}

/// What the blocks of the elements [first, first + count) say; a second word about an element
/// fails.
Uses uses_by_blocks(MergedWeight const& weight, Index first, Index count) {
  Uses uses;
  for_each_block(weight, first, count, [&](MergedBlock const& block) {
    for (Index i = 0; i < block.rows; ++i)
      for (Index j = 0; j < block.columns; ++j) {
        Index const row = block.first_row + i * block.row_step;
        Index const column = block.first_column + j;
        Use const use{block.pair, block.transposed ? column : row, block.transposed ? row : column};
        Index const element = block.element + i * block.row_stride + j * block.column_stride;
        EXPECT_GE(element, first);
        EXPECT_LT(element, first + count);
        EXPECT_TRUE(uses.emplace(element, use).second) << element;
      }
  });
  return uses;
}

void expect_in_all_cuts(MergedWeight const& weight, Index elements) {
  Uses const all = slow_uses(weight);
  std::mt19937_64 random(7);
  for (int repeat = 0; repeat < 60; ++repeat) {
    Index const first = static_cast<Index>(random() % static_cast<std::uint64_t>(elements));
    Index const count =
        repeat == 0
            ? elements - first
            : static_cast<Index>(random() % static_cast<std::uint64_t>(elements - first + 1));
    Uses const wanted(all.lower_bound(first), all.lower_bound(first + count));
    ASSERT_EQ(uses_by_blocks(weight, first, count), wanted) << first << " +" << count;
  }
}

TEST(MergedWeight, MatricesInAnyCut) {
  // [out 7, in 11]
  expect_in_all_cuts({{part_of(0, {{7, 11, 1, 0, 0}, {11, 1, 0, 1, 0}}, {0})}, nullptr, {}}, 77);
  // [in 7, out 11]
  expect_in_all_cuts({{part_of(0, {{7, 11, 0, 1, 0}, {11, 1, 1, 0, 0}}, {4})}, nullptr, {}}, 77);
}

TEST(MergedWeight, StacksWithSomeMatrices) {
  // [expert 3, out 4, in 5], of which the second expert is not adapted.
  MergedPart const part =
      part_of(0, {{3, 20, 0, 0, 1}, {4, 5, 1, 0, 0}, {5, 1, 0, 1, 0}}, {0, no_pair, 1});
  expect_in_all_cuts({{part}, nullptr, {}}, 60);
}

TEST(MergedWeight, SeveralWeightsOfOneTensor) {
  // Rows of two weights in turn (gate and up), [2 * 6, 4], behind 8 elements of another.
  MergedPart const gate = part_of(8, {{6, 8, 1, 0, 0}, {4, 1, 0, 1, 0}}, {0});
  MergedPart const up = part_of(12, {{6, 8, 1, 0, 0}, {4, 1, 0, 1, 0}}, {1});
  expect_in_all_cuts({{gate, up}, nullptr, {}}, 60);
  // Columns in turn, [in 5, 2 * 6].
  MergedPart const left = part_of(0, {{5, 12, 0, 1, 0}, {6, 2, 1, 0, 0}}, {0});
  MergedPart const right = part_of(1, {{5, 12, 0, 1, 0}, {6, 2, 1, 0, 0}}, {1});
  expect_in_all_cuts({{left, right}, nullptr, {}}, 60);
}

TEST(MergedWeight, AxesOfBothSidesInTurn) {
  // [out 2, in 3, out 2, in 2]; permuted rows [4, 2] of 8, in 3; a column that steps by two.
  expect_in_all_cuts(
      {{part_of(0, {{2, 12, 2, 0, 0}, {3, 4, 0, 2, 0}, {2, 2, 1, 0, 0}, {2, 1, 0, 1, 0}}, {0})},
       nullptr,
       {}},
      24);
  expect_in_all_cuts(
      {{part_of(0, {{4, 6, 1, 0, 0}, {2, 3, 4, 0, 0}, {3, 1, 0, 1, 0}}, {0})}, nullptr, {}}, 24);
  expect_in_all_cuts({{part_of(0, {{4, 3, 1, 0, 0}, {3, 1, 0, 2, 0}}, {0})}, nullptr, {}}, 12);
}

TEST(Nest, JoinsWhatIsOneRunAndRefusesWhatInterleaves) {
  std::vector<MergedDim> dims{{5, 1, 0, 1, 0}, {1, 99, 3, 0, 0}, {3, 20, 4, 0, 0}, {4, 5, 1, 0, 0}};
  ASSERT_TRUE(nest(dims));
  EXPECT_EQ(dims, (std::vector<MergedDim>{{12, 5, 1, 0, 0}, {5, 1, 0, 1, 0}}));
  std::vector<MergedDim> crossed{{3, 2, 1, 0, 0}, {3, 3, 0, 1, 0}};
  EXPECT_FALSE(nest(crossed));
}

}  // namespace
}  // namespace reshard
