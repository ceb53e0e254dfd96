#include <gtest/gtest.h>

#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

using Rows = std::vector<std::vector<Run>>;

Rows rows(Model& model, std::string_view text, Shares const& held) {
  return share_rows(parse_layout(text), model.scope(), held);
}

TEST(ShareRows, GateAndUpAreTwoRunsAndTheWholeIsOne) {
  Model model{{"inter", 8}};
  EXPECT_EQ(rows(model, "(gate: inter | up: inter)", shares(model, {{"inter", {{4, 8}}}})),
            (Rows{{{4, 8}, {12, 16}}}));
  EXPECT_EQ(rows(model, "(gate: inter | up: inter)", {}), (Rows{{{0, 16}}}));
}

TEST(ShareRows, GroupsOfFusedAttentionAreOneRun) {
  Model model{{"group", 4}, {"head", 2}, {"dim", 3}, {"hidden", 5}};
  EXPECT_EQ(rows(model, "a: (group (q: head dim | k: dim | v: dim)) hidden",
                 shares(model, {{"group", {{1, 3}}}})),
            (Rows{{{12, 36}}, {{0, 5}}}));
}

TEST(ShareRows, TooManyRunsAreRefused) {
  Model model{{"a", (Index{1} << 20) + 1}, {"b", 2}};
  EXPECT_EQ(sentence_of([&] {
              rows(model, "x: (a b)", shares(model, {{"b", {{0, 1}}}}));
            }),
            "a share falls into more than 1048576 runs of rows. Choose a split with longer runs.");
}

TEST(ShareRows, AnInnerShareRepeatsInEveryOuterRow) {
  Model model{{"a", 3}, {"b", 4}};
  EXPECT_EQ(rows(model, "x: (a b)", shares(model, {{"b", {{1, 2}}}, {"a", {{0, 2}}}})),
            (Rows{{{1, 2}, {5, 6}}}));
}

TEST(ShareRows, ReorderedRunsKeepTheOrderOfTheShare) {
  Model model{{"expert", 6}};
  EXPECT_EQ(rows(model, "x: expert", shares(model, {{"expert", {{5, 6}, {2, 4}}}})),
            (Rows{{{5, 6}, {2, 4}}}));
}

TEST(ShareRows, PaddingHasNoRows) {
  Model model{{"vocab", 10}};
  EXPECT_EQ(rows(model, "x: vocab", shares(model, {{"vocab", {{8, 10}, {0, 6, true}}}})),
            (Rows{{{8, 10}}}));
  EXPECT_EQ(rows(model, "x: vocab", shares(model, {{"vocab", {{0, 6, true}}}})), (Rows{{}}));
}

}  // namespace
}  // namespace reshard::test
