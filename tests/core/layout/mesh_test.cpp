#include "core/layout/mesh.hpp"

#include <gtest/gtest.h>

#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

using Pairs = std::vector<std::pair<int, int>>;

TEST(ReachableTpEp, HasHolesWhenExpertsAreSplitUnlikeTheRest) {
  EXPECT_EQ(reachable_tp_ep(2, 4, 1), (Pairs{{0, 0}, {0, 2}, {1, 1}, {1, 3}}));
  EXPECT_EQ(reachable_tp_ep(8, 8, 1),
            (Pairs{{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {6, 6}, {7, 7}}));
}

TEST(ReachableTpEp, IsTheFullGridWhenTheyAreSplitAlike) {
  EXPECT_EQ(reachable_tp_ep(2, 2, 2), (Pairs{{0, 0}, {0, 1}, {1, 0}, {1, 1}}));
  EXPECT_EQ(reachable_tp_ep(2, 2, 0), reachable_tp_ep(2, 2, 2)) << "etp 0 stands for tp";
  EXPECT_EQ(reachable_tp_ep(1, 1, 1), (Pairs{{0, 0}}));
}

TEST(ReachableTpEp, CountsFilesAsMegatronDoes) {
  EXPECT_EQ(reachable_tp_ep(4, 4, 2).size(), 8U);
  EXPECT_EQ(reachable_tp_ep(2, 3, 1).size(), 6U);
  EXPECT_EQ(reachable_tp_ep(8, 8, 1).size(), 8U);
}

TEST(ReachableTpEp, RefusesSizesBelowOneAndBeyondAnyMachine) {
  EXPECT_NE(sentence_of([] { reachable_tp_ep(0, 2, 1); }).find("tp = 0"), std::string::npos);
  EXPECT_NE(sentence_of([] { reachable_tp_ep(2, -1, 1); }).find("ep = -1"), std::string::npos);
  EXPECT_NE(
      sentence_of([] { reachable_tp_ep(2147483647, 2147483646, 2147483645); }).find("more than"),
      std::string::npos);
}

}  // namespace
}  // namespace reshard::test
