#include "core/layout/pieces/piece_digits.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace reshard {
namespace {

PieceDigit digit(std::uint64_t seed) {
  auto const n = static_cast<Index>(seed);
  return {static_cast<AxisId>(seed % 7), 64 + n % 3, 1 + n % 2, n % 11, 1 + n % 5, n};
}

void expect_same(PieceDigits const& digits, std::vector<PieceDigit> const& expected) {
  ASSERT_EQ(digits.size(), expected.size());
  EXPECT_EQ(std::vector<PieceDigit>(digits.begin(), digits.end()), expected);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(digits[i], expected[i]);
}

TEST(PieceDigits, AreThoseOfAVectorAtEachSize) {
  PieceDigits digits;
  std::vector<PieceDigit> expected;
  for (std::uint64_t i = 0; i < 20; ++i) {
    expect_same(digits, expected);
    PieceDigits const copy = digits;
    EXPECT_EQ(copy, digits);
    digits.push_back(digit(i * i));
    expected.push_back(digit(i * i));
    EXPECT_NE(copy, digits);
    expect_same(copy, {expected.begin(), expected.end() - 1});
  }
}

TEST(PieceDigits, MoveAndAssign) {
  for (std::size_t const size : {0U, 3U, 5U, 6U, 12U}) {
    std::vector<PieceDigit> expected;
    for (std::uint64_t i = 0; i < size; ++i) expected.push_back(digit(100 + i));
    PieceDigits first = expected;
    PieceDigits second = std::move(first);
    expect_same(second, expected);
    first = second;
    expect_same(first, expected);
    second = PieceDigits{digit(1)};
    expect_same(second, {digit(1)});
    first = std::move(second);
    expect_same(first, {digit(1)});
  }
}

TEST(PieceDigits, ChangeIsOfOnePieceAlone) {
  for (std::size_t const size : {2U, 9U}) {
    std::vector<PieceDigit> expected(size, digit(5));
    PieceDigits const before = expected;
    PieceDigits after = before;
    after.change(1, [](PieceDigit& one) { one.stride = 77; });
    expect_same(before, expected);
    expected[1].stride = 77;
    expect_same(after, expected);
    after.change([](PieceDigit& one) { one.axis += 1; });
    for (PieceDigit& one : expected) one.axis += 1;
    expect_same(after, expected);
  }
}

TEST(PieceDigits, ThreadsHaveTheSameNumbers) {
  std::vector<std::vector<PieceDigits>> made(4);
  {
    std::vector<std::jthread> threads;
    for (std::vector<PieceDigits>& mine : made)
      threads.emplace_back([&mine] {
        for (std::uint64_t i = 0; i < 20'000; ++i) mine.push_back({digit(i), digit(i / 3)});
      });
  }
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    expect_same(made[0][i], {digit(i), digit(i / 3)});
    for (std::vector<PieceDigits> const& other : made) EXPECT_EQ(other[i], made[0][i]);
  }
}

}  // namespace
}  // namespace reshard
