#include "core/plan/tensor_pieces.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "core/plan/equal/replicas.hpp"

namespace reshard {
namespace {

Piece piece(Index layer, Index row = 0, Index offset = 0) {
  return {TensorId{1},
          {{1, 8, 1, row, 2, 16}, {2, 16, 1, 0, 16, 1}, {0, 64, 1, layer, 1, 0}},
          {},
          offset};
}

TEST(TensorPieces, HaveOffsetsOnceOneIsNotZero) {
  TensorPieces all;
  std::vector<Piece> expected;
  for (Index layer = 0; layer < 4; ++layer) expected.push_back(piece(layer));
  for (Piece const& one : expected) all.add(one, 0, false);
  EXPECT_EQ(all.made(), expected);
  EXPECT_EQ(all.offset(3), 0);
  all.set(2, expected[2]);
  EXPECT_EQ(all.made(), expected);
  expected[2] = piece(7, 2, 30);
  all.set(2, expected[2]);
  expected.erase(expected.begin());
  all.erase(0);
  EXPECT_EQ(all.made(), expected);
  expected.push_back(piece(9));
  all.add(expected.back(), 1, false);
  EXPECT_EQ(all.made(), expected);
  EXPECT_EQ(all.offset(1), 30);
  EXPECT_EQ(all.reach_of(1), reach(expected[1]));
}

/// More frames than 2 bytes number: those of later pieces take 4.
TEST(TensorPieces, HaveAsManyFramesAsTheyNeed) {
  constexpr Index layers = 70'000;
  auto const of_layer = [](Index layer) {
    return Piece{TensorId{1}, {{3, 2 * layers, 1, layer, 1, 0}}, {}, 0};
  };
  for (Index layer = 0; layer < layers; ++layer) frame_of(of_layer(layer));
  TensorPieces all;
  std::vector<Piece> expected;
  auto const add = [&](Index layer) { all.add(expected.emplace_back(of_layer(layer)), 4, false); };
  for (Index const layer : {0, 1, 2, 3}) add(layer);
  add(layers - 1);
  EXPECT_EQ(all.made(), expected);
  add(4);
  TensorPieces const copy = all;
  all.erase(1);
  expected.erase(expected.begin() + 1);
  all.shrink();
  EXPECT_EQ(all.made(), expected);
  EXPECT_EQ(copy.size(), expected.size() + 1);
  TensorPieces single;
  single.add(of_layer(layers - 2), 9, false);
  single.add(of_layer(0), 8, false);
  EXPECT_EQ(single.made(), (std::vector{of_layer(layers - 2), of_layer(0)}));
  TensorPieces changed;
  for (Index const layer : {0, 1, 2}) changed.add(of_layer(layer), 1, false);
  changed.set(1, of_layer(layers - 3));
  EXPECT_EQ(changed.made(), (std::vector{of_layer(0), of_layer(layers - 3), of_layer(2)}));
  EXPECT_EQ(changed.blob(2), 1U);
}

/// One piece lies in the object itself, several elsewhere.
TEST(TensorPieces, AreMovedAndCopied) {
  for (Index const count : {1, 3}) {
    TensorPieces all;
    std::vector<Piece> expected;
    for (Index i = 0; i < count; ++i) all.add(expected.emplace_back(piece(i)), 7, false);
    TensorPieces const copy = all;
    TensorPieces moved = std::move(all);
    EXPECT_EQ(copy.made(), expected);
    EXPECT_EQ(moved.made(), expected);
    all = std::move(moved);
    all.add(expected.emplace_back(piece(5)), 8, false);
    EXPECT_EQ(all.made(), expected);
    all.erase(0);
    expected.erase(expected.begin());
    all.shrink();
    EXPECT_EQ(all.made(), expected);
    EXPECT_EQ(all.blobs().back(), 8U);
    moved = copy;
    EXPECT_EQ(moved.made(), copy.made());
  }
}

TEST(TensorPieces, AreWhatWasAdded) {
  TensorPieces all;
  EXPECT_TRUE(all.empty());
  std::vector<Piece> expected;
  for (Index i = 0; i < 100; ++i) {
    expected.push_back(piece(i / 4, 2 * (i % 4), 10 * i));
    all.add(expected.back(), static_cast<std::uint32_t>(3 * i), false);
  }
  ASSERT_EQ(all.size(), 100U);
  EXPECT_EQ(all.made(), expected);
  EXPECT_EQ(all.tensor(), TensorId{1});
  EXPECT_FALSE(all.has_copies());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i], expected[i]);
    EXPECT_EQ(all.blob(i), 3 * i);
    EXPECT_EQ(all.offset(i), expected[i].offset);
    EXPECT_EQ(all.box(i), elements_hash(expected[i].digits));
    EXPECT_EQ(all.reach_of(i), reach(expected[i]));
    EXPECT_EQ(all.frame(i) == all.frame(0), i < 4) << i;
    EXPECT_EQ(all.form(i) == all.form(0), i % 4 == 0) << i;
  }
  EXPECT_EQ(all.made(std::vector<std::uint32_t>{7, 3}),
            (std::vector<Piece>{expected[7], expected[3]}));
}

TEST(TensorPieces, AreChanged) {
  TensorPieces all;
  for (Index i = 0; i < 4; ++i) all.add(piece(i), static_cast<std::uint32_t>(i), i == 2);
  all.set(1, piece(9, 2, 5));
  all.set_blob(3, 40);
  EXPECT_EQ(all.made(), (std::vector<Piece>{piece(0), piece(9, 2, 5), piece(2), piece(3)}));
  EXPECT_EQ(std::vector<std::uint32_t>(all.blobs().begin(), all.blobs().end()),
            (std::vector<std::uint32_t>{0, 1, 2, 40}));
  all.set_tensor(TensorId{6});
  EXPECT_EQ(all[1].tensor, TensorId{6});
  EXPECT_EQ(all[1].digits, piece(9, 2).digits);
}

TEST(TensorPieces, CopiesAreCounted) {
  TensorPieces all;
  for (Index i = 0; i < 3; ++i) all.add(piece(i), 0, i == 1);
  all.add(piece(3), 0, false);
  EXPECT_TRUE(all.has_copies());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(all.is_copy(i), i == 1) << i;
  all.set_copy(3, true);
  all.erase(1);
  EXPECT_EQ(all.made(), (std::vector<Piece>{piece(0), piece(2), piece(3)}));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(all.is_copy(i), i == 2) << i;
  all.set_copy(2, true);
  all.set_copy(2, false);
  EXPECT_FALSE(all.has_copies());
}

TEST(TensorPieces, ReachCountsRepeats) {
  Piece repeated = piece(3, 2, 7);
  repeated.copies = {{3, 100}};
  EXPECT_EQ(reach(repeated), 7 + 16 + 15 + 200 + 1);
  TensorPieces all;
  all.add(repeated, 0, false);
  EXPECT_EQ(all.reach_of(0), reach(repeated));
}

/// Catalogues with replicas in several files, against a map of boxes.
TEST(DistinctPieces, OneOfEachBoxSpreadOverTheFiles) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    Catalog catalog;
    catalog.files.resize(4);
    catalog.tensors.resize(2);
    std::map<std::pair<Index, Index>, std::size_t> boxes;
    std::size_t copies = 0;
    auto const count = random() % 200;
    for (std::uint32_t i = 0; i < count; ++i) {
      Index const layer = static_cast<Index>(random() % 8);
      Index const row = static_cast<Index>(random() % 4) * 2;
      bool const copy = random() % 8 == 0;
      catalog.add({static_cast<std::uint32_t>(random() % 4), i, DType::u8, "t"},
                  {piece(layer, row, i)}, copy);
      if (copy)
        ++copies;
      else
        ++boxes[{layer, row}];
    }
    TensorPieces const& all = catalog.tensors[1];
    Distinct const distinct = distinct_pieces(all, catalog);
    ASSERT_EQ(distinct.size(), boxes.size());
    EXPECT_EQ(distinct.dropped, count - copies - boxes.size());
    std::map<std::pair<Index, Index>, std::uint32_t> taken;
    for (std::size_t i = 0; i < distinct.size(); ++i) {
      EXPECT_FALSE(all.is_copy(distinct.chosen[i]));
      EXPECT_EQ(distinct.blob(i), distinct.chosen[i]);
      EXPECT_EQ(distinct[i], all[distinct.chosen[i]]);
      Piece const one = distinct[i];
      EXPECT_TRUE(
          taken.emplace(std::pair(one.digits[2].first, one.digits[0].first), distinct.chosen[i])
              .second);
    }
    EXPECT_EQ(distinct.made().size(), distinct.size());
    EXPECT_EQ(distinct.blobs(), distinct.chosen);
    std::size_t left_out = 0;
    for (Replica const& replica : replicas(all, catalog)) {
      Piece const one = all[replica.left_out];
      EXPECT_EQ(replica.declared, all.is_copy(replica.left_out));
      EXPECT_EQ(replica.taken, taken.at({one.digits[2].first, one.digits[0].first}));
      left_out += replica.declared ? 0 : 1;
    }
    EXPECT_EQ(left_out, distinct.dropped);
  }
}

TEST(DistinctPieces, ReplicasAreReadFromAllFiles) {
  Catalog catalog;
  catalog.files.resize(4);
  catalog.tensors.resize(2);
  for (std::uint32_t file = 0; file < 4; ++file)
    for (Index layer = 0; layer < 40; ++layer)
      catalog.add({file, 0, DType::u8, "t"}, {piece(layer)}, false);
  std::vector<int> of_file(4);
  Distinct const distinct = distinct_pieces(catalog.tensors[1], catalog);
  for (std::size_t i = 0; i < distinct.size(); ++i) ++of_file[catalog.blobs[distinct.blob(i)].file];
  for (int const count : of_file) EXPECT_NEAR(count, 10, 2);
}

}  // namespace
}  // namespace reshard
