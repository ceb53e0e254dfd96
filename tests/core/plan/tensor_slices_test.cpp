#include "core/plan/equal/tensor_slices.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace reshard {
namespace {

/// A tensor of 3 layers, 4 experts and 10 rows.
struct Sides {
  AxisTable axes;
  AxisId layer = axes.add("layer", 3);
  AxisId expert = axes.add("expert", 4);
  AxisId row = axes.add("row", 10);
  std::vector<DomainAxis> domain{{layer, 1, {{0, 3}}}, {expert, 1, {{0, 4}}}, {row, 1, {{0, 10}}}};
  TensorPieces source;
  TensorPieces target;
  Catalog catalog;  ///< the target's

  PieceDigit index_of(AxisId axis, Index value) const {
    return {axis, axes[axis].size, 1, value, 1, 0};
  }
  PieceDigit run(AxisId axis, Index first, Index count, Index stride) const {
    return {axis, axes[axis].size, 1, first, count, stride};
  }

  /// One stored tensor for each layer and expert, in so many parts.
  void add_named(TensorPieces& side, Index parts) const {
    for (Index part = 0; part < parts; ++part)
      for (Index l = 0; l < 3; ++l)
        for (Index e = 0; e < 4; ++e)
          side.add({TensorId{0},
                    {index_of(layer, l), index_of(expert, e),
                     run(row, part * 10 / parts, 10 / parts, 1)},
                    {},
                    0},
                   0, false);
  }
  /// One stored tensor for each layer, of all experts.
  void add_stacked(TensorPieces& side) const {
    for (Index l = 0; l < 3; ++l)
      side.add(
          {TensorId{0}, {run(expert, 0, 4, 10), run(row, 0, 10, 1), index_of(layer, l)}, {}, 0}, 0,
          false);
  }

  TensorSlices slices(std::span<Piece const> blocks = {}) {
    catalog.blobs.add({0, 0, DType::bf16, "w"});
    std::vector<std::uint32_t> chosen(source.size());
    std::iota(chosen.begin(), chosen.end(), 0U);
    return {axes, domain, source, chosen, target, catalog, blocks};
  }
};

TEST(TensorSlices, IndicesInNamesOfOneSideAreEnough) {
  Sides sides;
  sides.add_named(sides.source, 2);
  sides.add_stacked(sides.target);
  TensorSlices const slices = sides.slices();
  ASSERT_EQ(slices.size(), 12U);
  EXPECT_TRUE(slices.is_cut(sides.layer));
  EXPECT_TRUE(slices.is_cut(sides.expert));
  EXPECT_FALSE(slices.is_cut(sides.row));
  EXPECT_TRUE(slices.source_has_all(sides.domain));
  std::set<std::pair<std::uint32_t, std::uint32_t>> source_forms;
  for (std::size_t s = 0; s < slices.size(); ++s) {
    Slice const slice = slices[s];
    ASSERT_EQ(slice.source.size(), 2U);
    ASSERT_EQ(slice.target.size(), 1U);
    Index const layer = static_cast<Index>(slice.key) % 3;
    Index const expert = static_cast<Index>(slice.key) / 3;
    EXPECT_EQ(slice.target[0].piece, static_cast<std::uint32_t>(layer));
    EXPECT_EQ(slice.target[0].offset, expert * 10);
    Piece const inner = slice.target[0].inner(TensorId{0});
    EXPECT_EQ(inner, (Piece{TensorId{0}, {sides.run(sides.row, 0, 10, 1)}, {}, 0}));
    for (SlicePiece const& piece : slice.source) source_forms.insert({piece.frame, piece.form});
  }
  EXPECT_EQ(source_forms.size(), 2U) << "slices are alike";
}

TEST(TensorSlices, AnAxisThatBothSidesStackIsNotCut) {
  Sides sides;
  sides.add_stacked(sides.source);
  sides.add_stacked(sides.target);
  TensorSlices const slices = sides.slices();
  EXPECT_EQ(slices.size(), 3U);
  EXPECT_FALSE(slices.is_cut(sides.expert));
}

TEST(TensorSlices, ATensorWithoutSuchIndicesIsOneSlice) {
  Sides sides;
  sides.domain.erase(sides.domain.begin(), sides.domain.begin() + 2);
  Piece const whole{TensorId{0}, {sides.run(sides.row, 0, 10, 1)}, {}, 7};
  sides.source.add(whole, 0, false);
  sides.target.add(whole, 0, false);
  TensorSlices const slices = sides.slices();
  ASSERT_EQ(slices.size(), 1U);
  EXPECT_EQ(slices[0].source[0].offset, 7);
  EXPECT_TRUE(slices.source_has_all(sides.domain));
}

/// An index in two digits, as a rank and a place in it.
TEST(TensorSlices, AnIndexMayHaveSeveralDigits) {
  Sides sides;
  sides.add_stacked(sides.target);
  for (Index l = 0; l < 3; ++l)
    for (Index e = 0; e < 4; ++e)
      sides.source.add({TensorId{0},
                        {{sides.expert, 4, 2, e / 2, 1, 0},
                         {sides.expert, 2, 1, e % 2, 1, 0},
                         sides.index_of(sides.layer, l),
                         sides.run(sides.row, 0, 10, 1)},
                        {},
                        0},
                       0, false);
  TensorSlices const slices = sides.slices();
  ASSERT_EQ(slices.size(), 12U);
  for (std::size_t s = 0; s < slices.size(); ++s)
    EXPECT_EQ(slices[s].source[0].piece, slices[s].key % 3 * 4 + slices[s].key / 3);
}

/// What is damaged or not alike is left to the join of the whole, which says what is wrong.
TEST(TensorSlices, AxesThatAreNotWholeAreNotCut) {
  Sides beyond;
  beyond.add_named(beyond.source, 1);
  beyond.add_named(beyond.target, 1);
  beyond.source.add({TensorId{0},
                     {beyond.index_of(beyond.layer, 0), beyond.index_of(beyond.expert, 4),
                      beyond.run(beyond.row, 0, 10, 1)},
                     {},
                     0},
                    0, false);
  EXPECT_FALSE(beyond.slices().is_cut(beyond.expert));
  EXPECT_TRUE(beyond.slices().is_cut(beyond.layer));

  Sides partly;  // half of the index only
  partly.add_named(partly.target, 1);
  for (Index half = 0; half < 2; ++half)
    partly.source.add(
        {TensorId{0}, {{partly.expert, 4, 2, half, 1, 0}, partly.run(partly.row, 0, 10, 1)}, {}, 0},
        0, false);
  EXPECT_FALSE(partly.slices().is_cut(partly.expert));
  EXPECT_FALSE(partly.slices().is_cut(partly.layer));
}

TEST(TensorSlices, AMissingOrForeignSliceIsSeen) {
  Sides sides;
  sides.add_named(sides.source, 1);
  sides.add_named(sides.target, 1);
  sides.source.erase(5);
  EXPECT_FALSE(sides.slices().source_has_all(sides.domain));

  Sides more;
  more.add_named(more.source, 1);
  more.add_named(more.target, 1);
  more.domain[1].runs = {{0, 2}, {3, 4}};
  EXPECT_FALSE(more.slices().source_has_all(more.domain));
}

TEST(TensorSlices, PartsOfABlockAreWhereItsIndicesLead) {
  Sides sides;
  sides.add_named(sides.source, 1);
  sides.add_stacked(sides.target);
  Piece const late{TensorId{0},
                   {sides.run(sides.layer, 1, 2, 40), sides.run(sides.expert, 0, 4, 10),
                    sides.run(sides.row, 0, 10, 1)},
                   {},
                   100};
  TensorSlices const slices = sides.slices(std::span(&late, 1));
  ASSERT_EQ(slices.size(), 12U);
  EXPECT_FALSE(slices.part_of(late, 0 + 3 * 2)) << "the block begins with layer 1";
  auto const part = slices.part_of(late, 2 + 3 * 3);
  ASSERT_TRUE(part);
  EXPECT_EQ(*part, (Piece{TensorId{0}, {sides.run(sides.row, 0, 10, 1)}, {}, 100 + 40 + 30}));
}

}  // namespace
}  // namespace reshard
