#include "core/layout/axis.hpp"

#include <gtest/gtest.h>

namespace reshard {
namespace {

Share const reordered = {{5, 7, false}, {2, 3, false}, {0, 2, true}};

TEST(Share, PositionsCountThroughTheRuns) {
  EXPECT_EQ(extent(reordered), 5);
  EXPECT_EQ(position_of(reordered, 5), 0);
  EXPECT_EQ(position_of(reordered, 6), 1);
  EXPECT_EQ(position_of(reordered, 2), 2);
  EXPECT_EQ(position_of(reordered, 3), -1);
  EXPECT_EQ(position_of({}, 0), -1);
}

TEST(Share, PaddingHasPositionsButNoIndices) {
  EXPECT_EQ(position_of(reordered, 0), -1);
  EXPECT_EQ(index_at(reordered, 3), -1);
  EXPECT_EQ(index_at(reordered, 5), -1);
}

TEST(Share, IndexAtUndoesPositionOf) {
  for (Index const index : {5, 6, 2})
    EXPECT_EQ(index_at(reordered, position_of(reordered, index)), index);
}

}  // namespace
}  // namespace reshard
