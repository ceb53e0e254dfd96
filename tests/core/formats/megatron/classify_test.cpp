#include "core/formats/megatron/headers/classify.hpp"

#include <map>
#include <random>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/core/formats/megatron/support.hpp"

namespace reshard::megatron {
namespace {

constexpr MeshSizes sizes_of(int tp, int pp, int ep, int etp) {
  return {.tp = tp, .pp = pp, .vpp = 1, .ep = ep, .etp = etp};
}

void give_args(std::vector<ShardFacts>& facts, ArgsSizes const& args) {
  for (auto& fact : facts) fact.args = args;
}

ArgsSizes args_of(MeshSizes const& s, int experts = 8) {
  return {.tp = s.tp,
          .pp = s.pp,
          .vpp = s.vpp,
          .ep = s.ep,
          .etp = s.etp,
          .experts = experts,
          .moe_fc1_rows = {}};
}

/// Keys of a shard of a MoE model on one pipeline stage.
KeySummary whole_keys(std::uint64_t hash) {
  return {.embedding = true,
          .head = true,
          .final_norm = true,
          .experts = true,
          .mtp = false,
          .first_layer = 0,
          .last_layer = 3,
          .chunks = 1,
          .dense_hash = hash,
          .expert_fc1_rows = {}};
}

KeySummary stage_keys(bool first, bool last, bool experts) {
  return {.embedding = first,
          .head = last,
          .final_norm = last,
          .experts = experts,
          .mtp = false,
          .first_layer = 0,
          .last_layer = 3,
          .chunks = 1,
          .dense_hash = first ? 1U : 2U,
          .expert_fc1_rows = {}};
}

TEST(Grid, NamesAreThoseOfReachablePairs) {
  EXPECT_EQ(names_of(grid_of(sizes_of(2, 1, 4, 1))),
            (std::vector<std::string>{"mp_rank_00_000", "mp_rank_00_002", "mp_rank_01_001",
                                      "mp_rank_01_003"}));
  EXPECT_EQ(grid_of(sizes_of(2, 2, 2, 2)).size(), 8U);
  EXPECT_EQ(grid_of(sizes_of(4, 1, 4, 2)).size(), 8U);
  EXPECT_EQ(grid_of(sizes_of(2, 1, 3, 1)).size(), 6U);
  EXPECT_EQ(grid_of(sizes_of(8, 1, 8, 1)).size(), 8U);
}

struct Case {
  std::string_view what;
  MeshSizes sizes;
  LayoutClass layout_class;
  Loader loader;
  std::string_view pattern;
  NameStyle style = NameStyle::megatron;
};

std::vector<Case> const cases = {
    {"one shard", sizes_of(1, 1, 1, 1), LayoutClass::one_d, Loader::non_ep, "mp_rank_{tp:02}"},
    {"tensor", sizes_of(8, 1, 1, 8), LayoutClass::one_d, Loader::non_ep, "mp_rank_{tp:02}"},
    {"100 tensor ranks", sizes_of(101, 1, 1, 101), LayoutClass::one_d, Loader::non_ep,
     "mp_rank_{tp:02}"},
    {"pipeline", sizes_of(1, 4, 1, 1), LayoutClass::two_d, Loader::non_ep,
     "mp_rank_{tp:02}_{pp:03}"},
    {"tensor and pipeline", sizes_of(2, 2, 1, 2), LayoutClass::two_d, Loader::non_ep,
     "mp_rank_{tp:02}_{pp:03}"},
    {"expert alone", sizes_of(1, 1, 4, 1), LayoutClass::three_d_pp_elided, Loader::ep_aware,
     "mp_rank_{tp:02}_{ep:03} (or mp_rank_{tp:02}_{pp:03}_{ep:03})"},
    {"tensor and expert", sizes_of(2, 1, 2, 2), LayoutClass::three_d_pp_elided, Loader::ep_aware,
     "mp_rank_{tp:02}_{ep:03} (or mp_rank_{tp:02}_{pp:03}_{ep:03})"},
    {"holes", sizes_of(2, 1, 4, 1), LayoutClass::three_d_pp_elided, Loader::ep_aware,
     "mp_rank_{tp:02}_{ep:03} (or mp_rank_{tp:02}_{pp:03}_{ep:03})"},
    {"8 of 16", sizes_of(4, 1, 4, 2), LayoutClass::three_d_pp_elided, Loader::ep_aware,
     "mp_rank_{tp:02}_{ep:03} (or mp_rank_{tp:02}_{pp:03}_{ep:03})"},
    {"lcm above both", sizes_of(2, 1, 3, 1), LayoutClass::three_d_pp_elided, Loader::ep_aware,
     "mp_rank_{tp:02}_{ep:03} (or mp_rank_{tp:02}_{pp:03}_{ep:03})"},
    {"all three", sizes_of(2, 2, 2, 2), LayoutClass::three_d, Loader::ep_aware,
     "mp_rank_{tp:02}_{pp:03}_{ep:03}"},
    {"diagonal with stages", sizes_of(8, 2, 8, 1), LayoutClass::three_d, Loader::ep_aware,
     "mp_rank_{tp:02}_{pp:03}_{ep:03}"},
    {"strict form", sizes_of(2, 1, 2, 2), LayoutClass::three_d, Loader::ep_aware,
     "mp_rank_{tp:02}_{pp:03}_{ep:03} (or mp_rank_{tp:02}_{ep:03})", NameStyle::full3d},
};

void expect_as(Classification const& found, Case const& c, std::size_t shards) {
  EXPECT_EQ(text(found.layout_class), text(c.layout_class));
  EXPECT_EQ(text(found.loader), text(c.loader));
  EXPECT_EQ(found.expected_pattern, c.pattern);
  EXPECT_EQ(found.sizes, c.sizes) << found.sizes.tp << " " << found.sizes.pp << " "
                                  << found.sizes.ep << " " << found.sizes.etp;
  EXPECT_EQ(mismatch_text(found), "");
  EXPECT_TRUE(found.missing.empty());
  EXPECT_TRUE(found.extra.empty());
  EXPECT_EQ(found.places.size(), shards);
  EXPECT_FALSE(found.reason.empty());
}

TEST(Classify, ByArgs) {
  for (auto const& c : cases) {
    SCOPED_TRACE(c.what);
    auto facts = grid_of(c.sizes, c.style);
    give_args(facts, args_of(c.sizes, c.sizes.ep > 1 ? 8 : 0));
    auto const found = classify(facts, {});
    expect_as(found, c, facts.size());
    EXPECT_EQ(found.sources.ep, SizeSource::args);
    EXPECT_EQ(found.notes.size(),
              c.sizes.ep > 1 ? 1U : 0U);  // "expert_parallel_size was not given"
  }
}

TEST(Classify, ByArgsOfOneShardAmongMany) {
  for (auto const& c : cases) {
    SCOPED_TRACE(c.what);
    auto facts = grid_of(c.sizes, c.style);
    facts.back().args = args_of(c.sizes);
    expect_as(classify(facts, {}), c, facts.size());
  }
}

TEST(Classify, ByTheUsersSizesWithoutArgs) {
  for (auto const& c : cases) {
    SCOPED_TRACE(c.what);
    auto const facts = grid_of(c.sizes, c.style);
    auto const found =
        classify(facts, {.tp = c.sizes.tp, .pp = c.sizes.pp, .ep = c.sizes.ep, .etp = c.sizes.etp});
    expect_as(found, c, facts.size());
    EXPECT_EQ(found.sources.ep, SizeSource::user);
    EXPECT_TRUE(found.notes.empty());
  }
}

TEST(Classify, ByTheUsersExpertSizeAlone) {
  for (auto const& c : cases) {
    if (c.sizes.etp != c.sizes.tp) continue;  // nothing says how experts are cut
    SCOPED_TRACE(c.what);
    auto const facts = grid_of(c.sizes, c.style);
    expect_as(classify(facts, {.tp = {}, .pp = {}, .ep = c.sizes.ep, .etp = {}}), c, facts.size());
  }
}

TEST(Classify, PlacesFollowTheMeaning) {
  auto facts = grid_of(sizes_of(2, 1, 4, 1));
  give_args(facts, args_of(sizes_of(2, 1, 4, 1)));
  EXPECT_EQ(classify(facts, {}).places,
            (std::vector<ShardPlace>{{0, 0, 0}, {0, 0, 2}, {1, 0, 1}, {1, 0, 3}}));
  auto const dense = named({"mp_rank_00_000", "mp_rank_00_001"});
  EXPECT_EQ(classify(dense, {.tp = {}, .pp = 2, .ep = {}, .etp = {}}).places,
            (std::vector<ShardPlace>{{0, 0, 0}, {0, 1, 0}}));
}

TEST(Classify, TheSameNamesAreStagesOrExpertsByArgs) {
  auto dense = grid_of(sizes_of(2, 2, 1, 2));
  auto moe = grid_of(sizes_of(2, 1, 2, 2));
  ASSERT_EQ(names_of(dense).size(), names_of(moe).size());
  give_args(dense, args_of(sizes_of(2, 2, 1, 2), 0));
  give_args(moe, args_of(sizes_of(2, 1, 2, 2)));
  EXPECT_EQ(classify(dense, {}).layout_class, LayoutClass::two_d);
  EXPECT_EQ(classify(moe, {}).layout_class, LayoutClass::three_d_pp_elided);
}

TEST(Classify, TheSameNamesAreStagesOrExpertsByKeys) {
  std::vector<std::string> const names = {"mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000",
                                          "mp_rank_01_001"};
  auto moe = named(names);
  for (auto& fact : moe)
    fact.keys = whole_keys(static_cast<std::uint64_t>(fact.numbers.numbers[0]));
  auto const experts = classify(moe, {});
  EXPECT_EQ(experts.layout_class, LayoutClass::three_d_pp_elided) << mismatch_text(experts);
  EXPECT_TRUE(contains(experts.reason, "dense keys alike across field 2")) << experts.reason;
  EXPECT_EQ(experts.sizes, sizes_of(2, 1, 2, 2));
  EXPECT_EQ(experts.sources.ep, SizeSource::names);

  auto staged = named(names);
  for (auto& fact : staged)
    fact.keys = stage_keys(fact.numbers.numbers[1] == 0, fact.numbers.numbers[1] == 1, true);
  auto const stages = classify(staged, {});
  EXPECT_EQ(stages.layout_class, LayoutClass::two_d) << mismatch_text(stages);
  EXPECT_EQ(stages.sizes, sizes_of(2, 2, 1, 2));
}

TEST(Classify, WithoutAnyExpertTheSecondNumberIsAStage) {
  auto facts = named({"mp_rank_00_000", "mp_rank_00_001"});
  for (auto& fact : facts)
    fact.keys = stage_keys(fact.numbers.numbers[1] == 0, fact.numbers.numbers[1] == 1, false);
  auto const found = classify(facts, {});
  EXPECT_EQ(found.layout_class, LayoutClass::two_d);
  EXPECT_TRUE(contains(found.reason, "no routed expert")) << found.reason;
}

TEST(Classify, ADiagonalIsTakenForExpertsByKeys) {
  auto facts = named({"mp_rank_00_000", "mp_rank_01_001", "mp_rank_02_002", "mp_rank_03_003"});
  for (auto& fact : facts) fact.keys = whole_keys(7);
  auto const found = classify(facts, {.tp = {}, .pp = {}, .ep = {}, .etp = 1});
  EXPECT_EQ(mismatch_text(found), "");
  EXPECT_EQ(found.sizes, sizes_of(4, 1, 4, 1));
}

TEST(Classify, AnEmbeddingCopyOfMtpInTheLastStageIsNoExpertEvidence) {
  auto facts = named({"mp_rank_00_000", "mp_rank_00_001", "mp_rank_00_002"});
  for (auto& fact : facts) {
    int const stage = fact.numbers.numbers[1];
    fact.keys = stage_keys(stage == 0, stage == 2, true);
    if (stage != 2) continue;
    fact.keys->embedding = true;
    fact.keys->mtp = true;
  }
  EXPECT_EQ(classify(facts, {}).layout_class, LayoutClass::two_d);
}

TEST(Classify, ExpertTensorSizeComesFromRowsWhenArgsLackIt) {
  auto facts = grid_of(sizes_of(4, 1, 4, 2));
  auto args = args_of(sizes_of(4, 1, 4, 2));
  args.etp.reset();
  args.moe_fc1_rows = 64;
  for (auto& fact : facts) {
    fact.args = args;
    fact.keys = whole_keys(1);
    fact.keys->expert_fc1_rows = 32;
  }
  auto const found = classify(facts, {});
  EXPECT_EQ(mismatch_text(found), "");
  EXPECT_EQ(found.sizes.etp, 2);
  EXPECT_EQ(found.sources.etp, SizeSource::shapes);
}

TEST(Classify, ExpertTensorSizeDefaultsToTensorSize) {
  auto facts = grid_of(sizes_of(2, 1, 2, 2));
  auto args = args_of(sizes_of(2, 1, 2, 2));
  args.etp.reset();
  give_args(facts, args);
  auto const found = classify(facts, {});
  EXPECT_EQ(found.sizes.etp, 2);
  EXPECT_EQ(found.sources.etp, SizeSource::fallback);
}

TEST(Classify, WidthsOfNumbersDoNotMatter) {
  auto facts = named({"mp_rank_0_1", "mp_rank_000_0", "mp_rank_1_0001", "mp_rank_01_00"});
  auto const found = classify(facts, {.tp = {}, .pp = 2, .ep = {}, .etp = {}});
  EXPECT_EQ(mismatch_text(found), "");
  EXPECT_EQ(found.places, (std::vector<ShardPlace>{{0, 1, 0}, {0, 0, 0}, {1, 1, 0}, {1, 0, 0}}));
}

TEST(Classify, ASecondNumberThatIsZeroEverywhereIsOneStage) {
  auto const found = classify(named({"mp_rank_00_000", "mp_rank_01_000"}), {});
  EXPECT_EQ(mismatch_text(found), "");
  EXPECT_EQ(found.layout_class, LayoutClass::two_d);
  EXPECT_EQ(found.sizes, sizes_of(2, 1, 1, 2));
}

TEST(Classify, ThreeNumbersWithoutArgsAreThreeDimensions) {
  auto const facts = grid_of(sizes_of(2, 2, 2, 2));
  auto const found = classify(facts, {});
  EXPECT_EQ(mismatch_text(found), "");
  EXPECT_EQ(found.layout_class, LayoutClass::three_d);
  EXPECT_EQ(found.sizes, sizes_of(2, 2, 2, 2));
  EXPECT_EQ(found.sources.ep, SizeSource::names);
  EXPECT_EQ(found.notes.size(), 1U);
}

TEST(Classify, ChunksOfKeysGiveTheVirtualSize) {
  auto facts = named({"mp_rank_00_000", "mp_rank_00_001"});
  for (auto& fact : facts) {
    fact.keys = stage_keys(fact.numbers.numbers[1] == 0, fact.numbers.numbers[1] == 1, false);
    fact.keys->chunks = 3;
  }
  auto const found = classify(facts, {});
  EXPECT_EQ(found.sizes.vpp, 3);
  EXPECT_EQ(found.sources.vpp, SizeSource::keys);
}

TEST(Classify, FilesThatMegatronsWriterLeavesOutAreHarmless) {
  // T=2, E=3, X=1: the loader wants lcm(2, 3) = 6 files, the writer makes max(2, 3) = 3; ranks 0,
  // 1, 2 are (0,0) (1,1) (0,2).
  auto facts = named({"mp_rank_00_000", "mp_rank_01_001", "mp_rank_00_002"});
  give_args(facts, args_of(sizes_of(2, 1, 3, 1)));
  auto const found = classify(facts, {});
  EXPECT_EQ(mismatch_text(found), "");
  EXPECT_EQ(found.missing.size(), 3U);
  EXPECT_TRUE(contains(found.notes.back(), "3 of the 6 directories")) << found.notes.back();
}

/// What the ranks that Megatron runs would find, counted rank by rank.
struct Slices {
  std::set<std::pair<int, int>> dense;         ///< (pp, tp)
  std::set<std::tuple<int, int, int>> expert;  ///< (pp, ep, etp)
  std::map<std::string, Slices> files = {};
};

Slices slices_by_rank(MeshSizes const& s) {
  Slices all;
  for (int pp = 0; pp < s.pp; ++pp)
    for (int r = 0; r < s.tp * s.ep * s.etp; ++r) {
      int const tp = r % s.tp;
      int const etp = r % s.etp;
      int const ep = (r / s.etp) % s.ep;
      auto& file = all.files[format_shard_name({tp, pp, ep}, s, NameStyle::megatron)];
      for (auto* slices : {&all, &file}) {
        slices->dense.emplace(pp, tp);
        slices->expert.emplace(pp, ep, etp);
      }
    }
  return all;
}

TEST(Classify, GapsAreReadableExactlyWhenEverySliceIsInSomeFile) {
  std::mt19937 random(11);  // NOLINT: the same cases in every run
  int readable = 0;
  for (int round = 0; round < 3000; ++round) {
    auto const draw = [&](int most) {
      return 1 + static_cast<int>(random() % static_cast<unsigned>(most));
    };
    int const etp = draw(2);
    auto const sizes = sizes_of(etp * draw(3), draw(2), 1 + draw(5), etp);
    auto const all = slices_by_rank(sizes);
    auto facts = grid_of(sizes);
    ASSERT_EQ(facts.size(), all.files.size());
    std::erase_if(facts, [&](ShardFacts const&) { return random() % 4 == 0; });
    if (facts.empty()) continue;
    give_args(facts, args_of(sizes));
    Slices left;
    for (auto const& fact : facts) {
      left.dense.insert(all.files.at(fact.name).dense.begin(), all.files.at(fact.name).dense.end());
      left.expert.insert(all.files.at(fact.name).expert.begin(),
                         all.files.at(fact.name).expert.end());
    }
    bool const expected = left.dense == all.dense && left.expert == all.expert;
    auto const found = classify(facts, {});
    EXPECT_EQ(found.mismatches.empty(), expected) << "round " << round << "\n"
                                                  << mismatch_text(found);
    EXPECT_EQ(found.missing.size(), all.files.size() - facts.size());
    readable += expected ? 1 : 0;
  }
  EXPECT_GT(readable, 300);
}

TEST(Classify, AFullGridWhereADiagonalWouldDoIsReadable) {
  auto facts = grid_of(sizes_of(2, 1, 2, 2));
  give_args(facts, args_of(sizes_of(2, 1, 2, 1)));
  auto const found = classify(facts, {});
  EXPECT_EQ(mismatch_text(found), "");
  EXPECT_EQ(found.extra, (std::vector<std::string>{"mp_rank_00_001", "mp_rank_01_000"}));
}

}  // namespace
}  // namespace reshard::megatron
