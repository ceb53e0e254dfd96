#include "core/formats/megatron/headers/shard_name.hpp"

#include <algorithm>

#include <gtest/gtest.h>

namespace reshard::megatron {
namespace {

TEST(ShardName, ReadsNumbersOfAnyWidth) {
  struct Case {
    std::string_view name;
    std::vector<int> numbers;
  };
  for (auto const& [name, numbers] : std::vector<Case>{
           {"mp_rank_00", {0}},
           {"mp_rank_0", {0}},
           {"mp_rank_100", {100}},
           {"mp_rank_00_001", {0, 1}},
           {"mp_rank_2_3", {2, 3}},
           {"mp_rank_0002_00003_0000004", {2, 3, 4}},
           {"mp_rank_00_000_005_001", {0, 0, 5, 1}},
           {"mp_rank_999999", {999'999}},
       }) {
    auto const parsed = parse_shard_name(name);
    ASSERT_TRUE(parsed) << name;
    EXPECT_EQ(parsed->numbers, numbers) << name;
  }
}

TEST(ShardName, RefusesEveryOtherName) {
  for (std::string_view const name : {"",
                                      "mp_rank",
                                      "mp_rank_",
                                      "mp_rank__0",
                                      "mp_rank_0_",
                                      "mp_rank_00__001",
                                      "mp_rank_-1",
                                      "mp_rank_+1",
                                      "mp_rank_ 1",
                                      "mp_rank_0x1",
                                      "mp_rank_1e3",
                                      "mp_rank_00_model_states.pt",
                                      "mp_rank_00.pth",
                                      "Mp_rank_00",
                                      "xmp_rank_00",
                                      "mp_rank_00_001_002_003_004",
                                      "mp_rank_1000000",
                                      "mp_rank_99999999999999999999",
                                      "iter_0000001",
                                      "mp_rank_00\n"})
    EXPECT_FALSE(parse_shard_name(name)) << name;
}

TEST(ShardName, NumbersOrderWhatTextDoesNot) {
  EXPECT_LT(std::string("mp_rank_100"), std::string("mp_rank_99"));
  EXPECT_LT(parse_shard_name("mp_rank_99")->numbers, parse_shard_name("mp_rank_100")->numbers);
}

struct FormatCase {
  ShardPlace place;
  MeshSizes sizes;
  std::string_view megatron;
  std::string_view full3d;
};

TEST(ShardName, WritesPadsAndLeavesOutWhatTheStyleSays) {
  for (auto const& c : std::vector<FormatCase>{
           {{.tp = 3, .pp = 0, .ep = 0}, {.tp = 4}, "mp_rank_03", "mp_rank_03"},
           {{.tp = 3, .pp = 2, .ep = 0}, {.tp = 4, .pp = 4}, "mp_rank_03_002", "mp_rank_03_002"},
           {{.tp = 3, .pp = 0, .ep = 7},
            {.tp = 4, .ep = 8},
            "mp_rank_03_007",
            "mp_rank_03_000_007"},
           {{.tp = 3, .pp = 2, .ep = 7},
            {.tp = 4, .pp = 4, .ep = 8},
            "mp_rank_03_002_007",
            "mp_rank_03_002_007"},
           {{.tp = 0, .pp = 0, .ep = 1},
            {.tp = 1, .pp = 1, .ep = 2},
            "mp_rank_00_001",
            "mp_rank_00_000_001"},
           {{.tp = 123, .pp = 1234, .ep = 0},
            {.tp = 200, .pp = 2000},
            "mp_rank_123_1234",
            "mp_rank_123_1234"},
       }) {
    EXPECT_EQ(format_shard_name(c.place, c.sizes, NameStyle::megatron), c.megatron);
    EXPECT_EQ(format_shard_name(c.place, c.sizes, NameStyle::full3d), c.full3d);
  }
}

TEST(ShardName, ItsPatternNamesTheFields) {
  EXPECT_EQ(shard_name_pattern({.tp = 2}, NameStyle::megatron), "mp_rank_{tp:02}");
  EXPECT_EQ(shard_name_pattern({.tp = 2, .pp = 2}, NameStyle::megatron), "mp_rank_{tp:02}_{pp:03}");
  EXPECT_EQ(shard_name_pattern({.tp = 2, .ep = 2}, NameStyle::megatron), "mp_rank_{tp:02}_{ep:03}");
  EXPECT_EQ(shard_name_pattern({.tp = 2, .ep = 2}, NameStyle::full3d),
            "mp_rank_{tp:02}_{pp:03}_{ep:03}");
  EXPECT_EQ(shard_name_pattern({.tp = 2, .pp = 2, .ep = 2}, NameStyle::megatron),
            "mp_rank_{tp:02}_{pp:03}_{ep:03}");
}

TEST(ShardName, WhatIsWrittenIsReadBack) {
  for (int tp : {0, 9, 99, 100, 4321})
    for (int pp : {0, 7, 1000})
      for (int ep : {0, 63, 999}) {
        auto const name = format_shard_name({tp, pp, ep}, {.tp = 5000, .pp = 2000, .ep = 1000},
                                            NameStyle::megatron);
        EXPECT_EQ(parse_shard_name(name)->numbers, (std::vector<int>{tp, pp, ep}));
      }
}

}  // namespace
}  // namespace reshard::megatron
