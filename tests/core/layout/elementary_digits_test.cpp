#include "core/layout/pieces/elementary_digits.hpp"

#include <gtest/gtest.h>

#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

std::vector<Interval> split(Interval whole, std::vector<Index> const& units) {
  return split_interval(whole, units);
}

TEST(SplitInterval, TailWholeRowsHead) {
  EXPECT_EQ(split({5, 90}, {32, 1}),
            (std::vector<Interval>{{0, 1}, {5, 27}, {1, 1}, {0, 32}, {2, 1}, {0, 31}}));
  EXPECT_EQ(split({10, 3}, {32, 8, 1}), (std::vector<Interval>{{0, 1}, {1, 1}, {2, 3}}));
  EXPECT_EQ(split({64, 64}, {32, 1}), (std::vector<Interval>{{2, 2}, {0, 32}}));
  EXPECT_TRUE(split({3, 0}, {32, 1}).empty());
}

TEST(SplitInterval, AgreesWithCountingOneByOne) {
  for (Index first = 0; first < 30; ++first)
    for (Index count = 0; first + count <= 30; ++count) {
      std::vector<Index> expected;
      for (Index i = first; i < first + count; ++i) expected.push_back(i);
      std::vector<Index> found;
      std::vector<Interval> const rows = split({first, count}, {12, 4, 1});
      for (std::size_t at = 0; at < rows.size(); at += 3)
        for (Index a = rows[at].first; a < rows[at].first + rows[at].count; ++a)
          for (Index b = rows[at + 1].first; b < rows[at + 1].first + rows[at + 1].count; ++b)
            for (Index c = rows[at + 2].first; c < rows[at + 2].first + rows[at + 2].count; ++c)
              found.push_back(12 * a + 4 * b + c);
      EXPECT_EQ(found, expected) << first << " + " << count;
      EXPECT_LE(rows.size() / 3, 5U);
    }
}

TEST(ElementaryDigits, SplitOffsetsFollowTheStride) {
  Model model{{"inter", 96}};
  AxisId const inter = model.axis("inter");
  std::vector<Piece> const src{{{}, {{inter, 96, 1, 5, 90, 2}}, {}, 7}};
  std::vector<Piece> const dst{{{}, {{inter, 96, 32, 0, 3, 32}, {inter, 32, 1, 0, 32, 1}}, {}, 0}};
  AxisId const order[] = {inter};
  Join const result = join(src, dst, order, model.axes);
  ASSERT_EQ(result.overlaps.size(), 3U);
  EXPECT_EQ(result.overlaps[0].src_offset, 7);
  EXPECT_EQ(result.overlaps[1].src_offset, 61);
  EXPECT_EQ(result.overlaps[2].src_offset, 125);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(result.span_of(i)[0].src_stride, 64);
    EXPECT_EQ(result.span_of(i)[1].src_stride, 2);
  }
}

TEST(ElementaryDigits, BlocksThatDoNotNestAreRefusedWithBothCounts) {
  Model model{{"inter", 96}};
  AxisId const inter = model.axis("inter");
  std::vector<Piece> const src{{{}, {{inter, 96, 32, 0, 3, 32}, {inter, 32, 1, 0, 32, 1}}, {}, 0}};
  std::vector<Piece> const dst{{{}, {{inter, 96, 48, 0, 2, 48}, {inter, 48, 1, 0, 48, 1}}, {}, 0}};
  AxisId const order[] = {inter};
  std::string const sentence = sentence_of([&] { join(src, dst, order, model.axes); });
  EXPECT_NE(sentence.find("axis 'inter' (size 96)"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("32 does not divide 48"), std::string::npos) << sentence;
}

TEST(ElementaryDigits, TopDigitMayBeRagged) {
  Model model{{"hidden", 70}};
  AxisId const hidden = model.axis("hidden");
  AxisId const order[] = {hidden};
  std::vector<Piece> const src{{{}, {{hidden, 70, 1, 0, 70, 1}}, {}, 0}};
  std::vector<Piece> const dst{{{}, {{hidden, 96, 32, 0, 2, 32}, {hidden, 32, 1, 0, 32, 1}}, {}, 0},
                               {{}, {{hidden, 70, 1, 64, 6, 1}}, {}, 0}};
  Join const result = join(src, dst, order, model.axes);
  ASSERT_EQ(result.digits.size(), 2U);
  EXPECT_EQ(result.digits[0].mod, 96);
  EXPECT_EQ(result.digits[0].div, 32);
  Index elements = 0;
  for (std::size_t i = 0; i < result.overlaps.size(); ++i)
    elements += result.span_of(i)[0].count * result.span_of(i)[1].count;
  EXPECT_EQ(elements, 70);
}

}  // namespace
}  // namespace reshard::test
