#include "core/layout/pieces/piece_table.hpp"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace reshard {
namespace {

PieceDigit name_digit(AxisId axis, Index first, Index mod = 64, Index div = 1) {
  return {axis, mod, div, first, 1, 0};
}

Piece sample(Index layer, Index expert, Index offset = 0) {
  return {
      TensorId{3},
      {{2, 64, 1, 0, 64, 16}, name_digit(1, expert), {3, 16, 1, 0, 16, 1}, name_digit(0, layer)},
      {},
      offset};
}

TEST(PieceTable, EqualPartsHaveEqualNumbers) {
  EXPECT_EQ(frame_of(sample(5, 17)), frame_of(sample(5, 17, 99)));
  EXPECT_EQ(form_of(sample(5, 17)), form_of(sample(6, 18, 99)));
  EXPECT_NE(frame_of(sample(5, 17)), frame_of(sample(17, 5)));
  Piece strided = sample(5, 17);
  strided.digits.change(0, [](PieceDigit& digit) { digit.stride = 32; });
  EXPECT_EQ(frame_of(strided), frame_of(sample(5, 17)));
  EXPECT_NE(form_of(strided), form_of(sample(5, 17)));
  Piece repeated = sample(5, 17);
  repeated.copies = {{2, 1024}};
  EXPECT_EQ(frame_of(repeated), frame_of(sample(5, 17)));
  EXPECT_NE(form_of(repeated), form_of(sample(5, 17)));
  repeated.copies = {{2, 1025}};
  EXPECT_NE(form_of(repeated), form_of(sample(5, 17)));
}

TEST(PieceTable, AFrameHasNamesInCanonicalOrder) {
  Piece piece;
  piece.digits = {name_digit(4, 1, 8, 2), name_digit(2, 3), name_digit(4, 0, 8, 4)};
  Piece turned;
  turned.digits = {name_digit(4, 0, 8, 4), name_digit(4, 1, 8, 2), name_digit(2, 3)};
  EXPECT_EQ(frame_of(piece), frame_of(turned));
  EXPECT_EQ(frame_digits(frame_of(piece)),
            (PieceDigits{name_digit(2, 3), name_digit(4, 0, 8, 4), name_digit(4, 1, 8, 2)}));
  EXPECT_TRUE(form_digits(form_of(piece)).empty());
}

TEST(PieceTable, AFormKeepsTheOrderOfItsDigits) {
  Piece piece;
  piece.digits = {{3, 16, 1, 0, 16, 1}, name_digit(0, 1), {2, 64, 1, 0, 64, 16}};
  Piece turned;
  turned.digits = {{2, 64, 1, 0, 64, 16}, {3, 16, 1, 0, 16, 1}};
  EXPECT_NE(form_of(piece), form_of(turned));
  EXPECT_EQ(form_digits(form_of(turned)), turned.digits);
}

TEST(PieceTable, OneValueInADimensionIsOfTheForm) {
  Piece piece;
  piece.digits = {{1, 8, 1, 5, 1, 128}, {2, 64, 1, 0, 0, 0}};
  EXPECT_TRUE(frame_digits(frame_of(piece)).empty());
  EXPECT_EQ(form_digits(form_of(piece)), piece.digits);
}

TEST(PieceTable, APieceIsMadeAgain) {
  Piece piece = sample(5, 17, 1000);
  piece.copies = {{2, 4096}, {3, 8192}};
  Piece const made = piece_of(piece.tensor, frame_of(piece), form_of(piece), piece.offset);
  EXPECT_EQ(made.digits,
            (PieceDigits{
                {2, 64, 1, 0, 64, 16}, {3, 16, 1, 0, 16, 1}, name_digit(0, 5), name_digit(1, 17)}));
  EXPECT_EQ(made.copies, piece.copies);
  EXPECT_EQ(made.offset, 1000);
  EXPECT_EQ(made.tensor, TensorId{3});
  EXPECT_EQ(piece_of(made.tensor, frame_of(made), form_of(made), made.offset), made);
}

TEST(PieceTable, HashesAreOfTheElements) {
  Piece const piece = sample(5, 17);
  EXPECT_EQ(elements_hash(piece.digits), frame_hash(frame_of(piece)) + form_hash(form_of(piece)));
  Piece turned = piece;  // the same elements, stored transposed
  turned.digits = {
      name_digit(0, 5), {3, 16, 1, 0, 16, 64}, name_digit(1, 17), {2, 64, 1, 0, 64, 1}};
  EXPECT_EQ(elements_hash(turned.digits),
            frame_hash(frame_of(turned)) + form_hash(form_of(turned)));
  EXPECT_EQ(elements_hash(turned.digits), elements_hash(piece.digits));
  std::set<std::uint64_t> hashes;
  for (Index layer = 0; layer < 8; ++layer)
    for (Index expert = 0; expert < 8; ++expert)
      hashes.insert(elements_hash(sample(layer, expert).digits));
  EXPECT_EQ(hashes.size(), 64U);
}

TEST(PieceTable, ThreadsHaveTheSameNumbers) {
  constexpr Index count = 20'000;
  std::vector<std::vector<Piece>> made(4);
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> numbers(4);
  auto const one = [](Index i) {
    Piece piece = sample(i, i / 3, i);
    piece.digits.change(0, [&](PieceDigit& digit) { digit.stride = 16 + i % 1000; });
    return piece;
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < made.size(); ++t)
      threads.emplace_back([&, t] {
        for (Index i = 0; i < count; ++i) {
          Piece const piece = one(i);
          numbers[t].emplace_back(frame_of(piece), form_of(piece));
          made[t].push_back(
              piece_of(piece.tensor, numbers[t].back().first, numbers[t].back().second, i));
        }
      });
  }
  std::set<std::uint32_t> frames;
  for (auto const& [frame, form] : numbers[0]) frames.insert(frame);
  EXPECT_EQ(frames.size(), static_cast<std::size_t>(count));
  for (std::size_t t = 1; t < made.size(); ++t) {
    EXPECT_EQ(numbers[t], numbers[0]);
    EXPECT_EQ(made[t], made[0]);
  }
  for (Index i = 0; i < count; ++i) {
    Piece const& piece = made[0][static_cast<std::size_t>(i)];
    ASSERT_EQ(frame_digits(frame_of(piece)), (PieceDigits{name_digit(0, i), name_digit(1, i / 3)}));
    ASSERT_EQ(form_digits(form_of(piece))[0].stride, 16 + i % 1000);
  }
}

}  // namespace
}  // namespace reshard
