#include "stages/plan/adapter/low_rank_pairs.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/expect_refused.hpp"

namespace reshard {
namespace {

/// Weights [matrix 2, out 3, in 4] and [out 3, in 4].
Model model() {
  std::vector<PlainTensor> const tensors{{"stack", {2, 3, 4}}, {"single", {3, 4}}};
  return {tensors, "test"};
}

AxisId axis(Model const& model, std::string_view tensor, std::size_t dimension) {
  return model.tensor(*model.find_tensor(tensor)).axes[dimension].axis;
}

PieceDigit whole(AxisId axis, Index size, Index stride) { return {axis, size, 1, 0, size, stride}; }

/// A [in, rank] or B [out, rank] as a piece, of one matrix of `stack`.
FactorPiece factor(Model const& model, std::size_t dimension, Index rows, Index matrix,
                   std::uint64_t at) {
  Piece piece{*model.find_tensor("stack"), {}, {}, 0};
  piece.digits.push_back({axis(model, "stack", 0), 2, 1, matrix, 1, 0});
  piece.digits.push_back(whole(axis(model, "stack", dimension), rows, 2));
  piece.digits.push_back({rank_axis, 2, 1, 0, 2, 1});
  return {1, at, DType::f32, piece};
}

AdaptedTensor adapted(Model const& model, Index matrix) {
  AdaptedTensor one{"m", *model.find_tensor("stack"), 2, {}, {}, {}};
  one.terms = [](MatrixPlace const& place) {
    return MatrixTerms{fmt::format("m{}", place.front().second), 0.5F};
  };
  one.a.push_back(factor(model, 2, 4, matrix, 100));
  one.b.push_back(factor(model, 1, 3, matrix, 200));
  return one;
}

/// `stack` in one blob as [out 3, matrix 2, in 4], `single` behind it.
Catalog catalog(Model const& model, DType dtype = DType::bf16) {
  Catalog made;
  made.files = {"weights", "adapter"};
  made.tensors.resize(model.tensors().size());
  Piece stack{*model.find_tensor("stack"), {}, {}, 0};
  stack.digits = {whole(axis(model, "stack", 0), 2, 4), whole(axis(model, "stack", 1), 3, 8),
                  whole(axis(model, "stack", 2), 4, 1)};
  Piece single{*model.find_tensor("single"), {}, {}, 24};
  single.digits = {whole(axis(model, "single", 0), 3, 4), whole(axis(model, "single", 1), 4, 1)};
  made.add({0, 10, dtype, "w"}, {stack, single}, false);
  return made;
}

TEST(LowRankPairs, MakesViewsOfAdaptedPiecesAlone) {
  Model const of = model();
  LowRankPairs pairs(of);
  pairs.add(adapted(of, 1));
  Catalog source = catalog(of);
  pairs.merge_into(source);
  ASSERT_EQ(source.views.size(), 1U);
  SourceView const& view = source.views.front();
  EXPECT_EQ(view.kind, ViewKind::merge);
  EXPECT_EQ(view.stored.offset_bytes, 10U);
  EXPECT_EQ(view.shape, std::vector<Index>{24});
  EXPECT_EQ(files_of(view), (std::vector<std::uint32_t>{0, 1}));
  TensorPieces const& single = source.tensors[index(*of.find_tensor("single"))];
  EXPECT_EQ(source.blobs[single.blob(0)].file, 0U) << "not adapted";
  TensorPieces const& stack = source.tensors[index(*of.find_tensor("stack"))];
  EXPECT_EQ(source.blobs[stack.blob(0)].file, 2U);

  // Row 2 of matrix 1: element 2 * 8 + 1 * 4.
  std::vector<MergedBlock> blocks;
  for_each_block(*view.merged, 20, 4, [&](MergedBlock const& block) { blocks.push_back(block); });
  ASSERT_EQ(blocks.size(), 1U);
  EXPECT_EQ(blocks[0].element, 20);
  EXPECT_EQ(blocks[0].first_row, 2);
  EXPECT_EQ(blocks[0].columns, 4);
  LowRankPair const& pair = (*view.merged->pairs)[blocks[0].pair];
  EXPECT_EQ(pair.name, "m1");
  EXPECT_EQ(pair.b.rows, 3);
  EXPECT_EQ(pair.a.rows, 4);
  EXPECT_EQ(pair.a.parts.front().offset_bytes, 100U);
  bool touched = false;
  for_each_block(*view.merged, 16, 4, [&](MergedBlock const&) { touched = true; });
  EXPECT_FALSE(touched) << "row 2 of matrix 0, which has no adapter";
}

TEST(LowRankPairs, LeavesFilesWithoutAdaptedMatricesAlone) {
  Model const of = model();
  LowRankPairs pairs(of);
  pairs.add(adapted(of, 1));
  Catalog source = catalog(of);
  TensorPieces& stack = source.tensors[index(*of.find_tensor("stack"))];
  Piece first = stack[0];
  first.digits.change(0, [&](PieceDigit& digit) { digit = {axis(of, "stack", 0), 2, 1, 0, 1, 4}; });
  stack.set(0, first);
  pairs.merge_into(source);
  EXPECT_TRUE(source.views.empty());
}

TEST(LowRankPairs, ReadsReplicasOfFactorsOnce) {
  Model const of = model();
  AdaptedTensor one = adapted(of, 0);
  one.a.push_back(one.a.front());
  one.a.back().file = 2;
  LowRankPairs pairs(of);
  pairs.add(one);
  EXPECT_EQ(pairs.pairs().front().a.parts.size(), 1U);
}

TEST(LowRankPairs, RefusesWhatDoesNotBelongTogether) {
  Model const of = model();
  LowRankPairs pairs(of);
  pairs.add(adapted(of, 0));
  EXPECT_THROW(pairs.add(adapted(of, 0)), Error) << "two adapters of one matrix";
  AdaptedTensor half = adapted(of, 1);
  half.b.front().piece.digits.change(1, [](PieceDigit& digit) { digit.count = 2; });
  EXPECT_THROW(pairs.add(half), Error) << "a row of B is missing";
  Catalog halves = catalog(of, DType::f8_e4m3);
  EXPECT_THROW(pairs.merge_into(halves), Error) << "of a dtype that is not merged";
  Catalog computed = catalog(of, DType::f32);
  computed.blobs.set(0, computed.computed(computed.blobs[0], 36, ViewKind::round, DType::bf16));
  EXPECT_THROW(pairs.merge_into(computed), Error);
}

TEST(LowRankPairs, RefusesWhatCannotBeMergedAndSaysWhy) {
  using test::expect_refused;
  Model const of = model();
  LowRankPairs pairs(of);
  pairs.add(adapted(of, 0));
  std::size_t const stack = index(*of.find_tensor("stack"));

  AdaptedTensor turned = adapted(of, 1);
  std::swap(turned.a, turned.b);
  expect_refused(ErrorKind::source,
                 "its A and B of 'stack' have other axes than those of its other",
                 [&] { pairs.add(turned); });

  Catalog interleaved = catalog(of);
  Piece piece = interleaved.tensors[stack][0];
  piece.digits = {whole(axis(of, "stack", 0), 2, 5), whole(axis(of, "stack", 1), 3, 4),
                  whole(axis(of, "stack", 2), 4, 1)};
  interleaved.tensors[stack].set(0, piece);
  expect_refused(ErrorKind::source, "'w': its axes interleave in the file",
                 [&] { pairs.merge_into(interleaved); });

  Catalog lacking = catalog(of);
  lacking.tensors[stack] = {};
  expect_refused(ErrorKind::source, "the adapter adapts 'stack', which the source does not have",
                 [&] { pairs.merge_into(lacking); });
}

}  // namespace
}  // namespace reshard
