#include "core/layout/pieces/flat_boxes.hpp"

#include <gtest/gtest.h>

namespace reshard {
namespace {

Index volume(TensorBox const& box) {
  Index result = 1;
  for (std::size_t d = 0; d < box.begin.size(); ++d) result *= box.end[d] - box.begin[d];
  return result;
}

/// The flat numbers of a box's elements, in row-major order of the box.
std::vector<Index> elements(std::vector<Index> const& shape, TensorBox const& box) {
  std::vector<Index> numbers;
  std::vector<Index> at = box.begin;
  for (Index left = volume(box); left > 0; --left) {
    Index flat = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + at[d];
    numbers.push_back(flat);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < box.end[d]) break;
      at[d] = box.begin[d];
    }
  }
  return numbers;
}

TEST(FlatBoxes, CoverEveryRangeInOrderWithFewBoxes) {
  for (std::vector<Index> const& shape :
       {std::vector<Index>{7}, {3, 4}, {2, 3, 4}, {2, 1, 3, 2}, {1, 5}}) {
    Index total = 1;
    for (Index const extent : shape) total *= extent;
    for (Index begin = 0; begin <= total; ++begin) {
      for (Index end = begin; end <= total; ++end) {
        std::vector<FlatBox> const boxes = flat_boxes(shape, begin, end);
        ASSERT_LE(boxes.size(), 2 * shape.size() - 1);
        Index next = begin;
        for (FlatBox const& flat : boxes) {
          EXPECT_EQ(flat.offset, next - begin);
          for (Index const element : elements(shape, flat.box)) EXPECT_EQ(element, next++);
        }
        EXPECT_EQ(next, end);
      }
    }
  }
}

TEST(FlatBoxes, AScalarIsOneBox) {
  auto const boxes = flat_boxes(std::vector<Index>{}, 0, 1);
  ASSERT_EQ(boxes.size(), 1U);
  EXPECT_TRUE(boxes[0].box.begin.empty());
  EXPECT_EQ(boxes[0].offset, 0);
}

}  // namespace
}  // namespace reshard
