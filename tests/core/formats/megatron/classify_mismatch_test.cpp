#include <gtest/gtest.h>

#include "core/formats/megatron/headers/classify.hpp"
#include "tests/core/formats/megatron/support.hpp"

namespace reshard::megatron {
namespace {

using Names = std::vector<std::string>;

ArgsSizes args_of(int tp, int pp, int ep, int etp, int experts = 8) {
  return {
      .tp = tp, .pp = pp, .vpp = 1, .ep = ep, .etp = etp, .experts = experts, .moe_fc1_rows = {}};
}

struct Case {
  std::string_view what;
  Names names;
  UserSizes user;
  std::optional<ArgsSizes> args;
  std::string_view sentence;  ///< part of a mismatch
  bool user_given;
};

std::vector<Case> const cases = {
    {"no directory", {}, {}, {}, "no mp_rank_* directories", false},
    {"expert size given, one number",
     {"mp_rank_00", "mp_rank_01"},
     {.ep = 2},
     {},
     "expert size 2 (from user) make names like mp_rank_{tp:02}_{ep:03} (or mp_rank_{tp:02}_{pp:03}_{ep:03}), but found mp_rank_00, mp_rank_01",
     true},
    {"expert and pipeline size given, two numbers",
     {"mp_rank_00_000", "mp_rank_00_001"},
     {.pp = 2, .ep = 2},
     {},
     "make names like mp_rank_{tp:02}_{pp:03}_{ep:03}, but found mp_rank_00_000, mp_rank_00_001",
     true},
    {"expert size 1, three numbers",
     {"mp_rank_00_000_000", "mp_rank_00_000_001"},
     {.ep = 1},
     {},
     "Pass expert_parallel_size",
     true},
    {"expert size 1, three numbers with zeros",
     {"mp_rank_00_000_000", "mp_rank_00_001_000"},
     {.ep = 1},
     {},
     "Pass expert_parallel_size",
     true},
    {"undecidable",
     {"mp_rank_00_000", "mp_rank_00_001"},
     {},
     {},
     "State the expert or the pipeline size",
     false},
    {"stages given, args say experts",
     {"mp_rank_00_000", "mp_rank_00_001"},
     {.pp = 2},
     args_of(1, 1, 2, 1),
     "is a pipeline rank by user (pipeline_parallel_size=2 given by the user), but an expert rank by args (args.expert_model_parallel_size=2)",
     true},
    {"experts given, args say stages",
     {"mp_rank_00_000", "mp_rank_00_001"},
     {.ep = 2},
     args_of(1, 2, 1, 1, 0),
     "but a pipeline rank by args",
     true},
    {"tensor size given and in args",
     {"mp_rank_00", "mp_rank_01"},
     {.tp = 2},
     args_of(4, 1, 1, 4, 0),
     "tensor_model_parallel_size is 2 as given by the user, but 4 in args",
     true},
    {"expert tensor size given and in args",
     {"mp_rank_00", "mp_rank_01"},
     {.etp = 1},
     args_of(2, 1, 1, 2),
     "expert_tensor_parallel_size is 1 as given by the user, but 2 in args",
     true},
    {"args have stages, names do not",
     {"mp_rank_00", "mp_rank_01"},
     {},
     args_of(2, 2, 1, 2, 0),
     "pipeline size 2 (from args) and expert size 1 (from args) make names like mp_rank_{tp:02}_{pp:03}",
     false},
    {"args have experts and stages, names two numbers",
     {"mp_rank_00_000", "mp_rank_00_001"},
     {},
     args_of(1, 2, 2, 1),
     "expert size 2 (from args)",
     false},
    {"args have no experts, third number counts",
     {"mp_rank_00_000_000", "mp_rank_00_000_001"},
     {},
     args_of(1, 1, 1, 1, 0),
     "expert size 1 (from args)",
     false},
    {"tensor rank missing",
     {"mp_rank_00", "mp_rank_02"},
     {},
     {},
     "no file holds tp 1 of pp 0 (missing: mp_rank_01)",
     false},
    {"first tensor rank missing", {"mp_rank_01"}, {}, {}, "tp 0 of pp 0", false},
    {"stage missing",
     {"mp_rank_00_000", "mp_rank_00_002"},
     {.pp = 3},
     {},
     "no file holds tp 0 of pp 1 (missing: mp_rank_00_001)",
     true},
    {"one shard of a grid missing",
     {"mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000"},
     {.pp = 2},
     {},
     "tp 1 of pp 1",
     true},
    {"expert rank missing",
     {"mp_rank_00_000", "mp_rank_00_002"},
     {},
     args_of(1, 1, 3, 1),
     "experts of ep 1 (etp 0) of pp 0",
     false},
    {"expert slice missing",
     {"mp_rank_00_000", "mp_rank_01_000", "mp_rank_00_001"},
     {},
     args_of(2, 1, 2, 2),
     "experts of ep 1 (etp 1) of pp 0",
     false},
    {"above the tensor size",
     {"mp_rank_00", "mp_rank_01", "mp_rank_02"},
     {},
     args_of(2, 1, 1, 2, 0),
     "mp_rank_02 are outside the sizes tensor 2",
     false},
    {"never written by core 0.10",
     {"mp_rank_00"},
     {},
     args_of(4, 1, 1, 1, 8),
     "never wrote tensor ranks from etp x ep = 1 on",
     false},
    {"same numbers twice",
     {"mp_rank_00", "mp_rank_0", "mp_rank_01"},
     {},
     {},
     "mp_rank_00 and mp_rank_0 have the same numbers",
     false},
    {"mixed numbers",
     {"mp_rank_00", "mp_rank_01", "mp_rank_00_000"},
     {},
     {},
     "these names have 2 numbers: mp_rank_00_000; these have 1: mp_rank_00, mp_rank_01",
     false},
    {"four numbers", {"mp_rank_00_000_000_000"}, {}, {}, "so one is a data-parallel rank", false},
    {"expert tensor size above tensor size",
     {"mp_rank_00_000", "mp_rank_00_001"},
     {},
     args_of(1, 1, 2, 2),
     "only one slice of the experts is left",
     false},
    {"expert tensor size that does not divide",
     {"mp_rank_00_000", "mp_rank_01_000", "mp_rank_02_000"},
     {},
     args_of(3, 1, 2, 2),
     "does not divide tensor size 3",
     false},
    {"impossible sizes",
     {"mp_rank_00"},
     {},
     args_of(999'999, 999'999, 1, 1, 0),
     "more than 1000000 directories",
     false},
    {"size zero", {"mp_rank_00"}, {.tp = 0}, {}, "tensor_parallel_size is 0, expected 1 to", true},
    {"size below zero",
     {"mp_rank_00_000"},
     {.ep = 2, .etp = -1},
     {},
     "expert_tensor_parallel_size is -1",
     true},
};

/// What a reader of these files refuses them with.
std::string refusal_of(std::vector<ShardFacts> const& facts, UserSizes const& user) {
  auto const found = classify(facts, user);
  bool user_given = false;
  for (auto const& mismatch : found.mismatches) user_given = user_given || mismatch.user_given;
  return sentence_of([&] { require_readable(found, "/ckpt"); },
                     user_given ? ErrorKind::usage : ErrorKind::source);
}

TEST(ClassifyMismatch, EveryContradictionIsASentence) {
  for (auto const& c : cases) {
    SCOPED_TRACE(c.what);
    auto facts = named(c.names);
    for (auto& fact : facts) fact.args = c.args;
    auto const found = classify(facts, c.user);
    EXPECT_EQ(found.places.size(), facts.size());
    bool there = false;
    bool user_given = false;
    for (auto const& mismatch : found.mismatches) {
      if (!contains(mismatch.sentence, c.sentence)) continue;
      there = true;
      user_given = mismatch.user_given;
    }
    EXPECT_TRUE(there) << mismatch_text(found);
    EXPECT_EQ(user_given, c.user_given);
    EXPECT_TRUE(contains(refusal_of(facts, c.user), c.sentence));
  }
}

TEST(ClassifyMismatch, KeysContradictTheUser) {
  auto facts = named({"mp_rank_00_000", "mp_rank_00_001"});
  for (auto& fact : facts)
    fact.keys = KeySummary{.embedding = true,
                           .head = true,
                           .final_norm = true,
                           .experts = true,
                           .mtp = false,
                           .first_layer = 0,
                           .last_layer = 1,
                           .chunks = 1,
                           .dense_hash = 5,
                           .expert_fc1_rows = {}};
  auto const found = classify(facts, {.tp = {}, .pp = 2, .ep = {}, .etp = {}});
  EXPECT_TRUE(contains(mismatch_text(found),
                       "but an expert rank by keys (embedding and final norm in every shard"))
      << mismatch_text(found);
}

TEST(ClassifyMismatch, NoExpertContradictsAnExpertSizeOfArgs) {
  auto facts = named({"mp_rank_00_000", "mp_rank_00_001"});
  for (auto& fact : facts) {
    fact.args = args_of(1, 1, 2, 1);
    fact.keys = KeySummary{.embedding = true,
                           .head = true,
                           .final_norm = true,
                           .experts = false,
                           .mtp = false,
                           .first_layer = 0,
                           .last_layer = 1,
                           .chunks = 1,
                           .dense_hash = 5,
                           .expert_fc1_rows = {}};
  }
  EXPECT_TRUE(contains(refusal_of(facts, {}), "no routed expert in any shard"));
}

TEST(ClassifyMismatch, ArgsOfTwoSaves) {
  auto facts = named({"mp_rank_00", "mp_rank_01"});
  facts[0].args = args_of(2, 1, 1, 2, 0);
  facts[1].args = args_of(4, 1, 1, 4, 0);
  EXPECT_TRUE(contains(refusal_of(facts, {}),
                       "args.tensor_model_parallel_size is 2 in mp_rank_00 and 4 in mp_rank_01"));
}

TEST(ClassifyMismatch, ChunksOfTwoSaves) {
  auto facts = named({"mp_rank_00", "mp_rank_01"});
  facts[0].keys = KeySummary{};
  facts[1].keys = KeySummary{};
  facts[1].keys->chunks = 2;
  EXPECT_TRUE(contains(refusal_of(facts, {}),
                       "mp_rank_01 has 2 model chunks, and others "
                       "have 1"));
}

TEST(ClassifyMismatch, ChunksContradictArgs) {
  auto facts = named({"mp_rank_00"});
  facts[0].args = args_of(1, 1, 1, 1, 0);
  facts[0].keys = KeySummary{};
  facts[0].keys->chunks = 2;
  EXPECT_TRUE(contains(refusal_of(facts, {}),
                       "virtual_pipeline_model_parallel_size is 1, but the files hold 2"));
}

TEST(ClassifyMismatch, RowsContradictTheExpertTensorSize) {
  auto facts = grid_of({.tp = 2, .pp = 1, .vpp = 1, .ep = 2, .etp = 2});
  auto args = args_of(2, 1, 2, 2);
  args.moe_fc1_rows = 64;
  for (auto& fact : facts) {
    fact.args = args;
    fact.keys = KeySummary{.embedding = true,
                           .head = true,
                           .final_norm = true,
                           .experts = true,
                           .mtp = false,
                           .first_layer = 0,
                           .last_layer = 1,
                           .chunks = 1,
                           .dense_hash = 5,
                           .expert_fc1_rows = 64};
  }
  EXPECT_TRUE(contains(
      refusal_of(facts, {}),
      "an expert's fc1 has 64 rows, but args give 64 rows over expert tensor size 2 (from args)"));
}

TEST(ClassifyMismatch, AShardWithoutItsFileIsNamed) {
  auto facts = named({"mp_rank_00", "mp_rank_01"});
  facts[1].has_model_file = false;
  auto const found = classify(facts, {});
  EXPECT_EQ(found.without_file, Names{"mp_rank_01"});
  EXPECT_TRUE(contains(mismatch_text(found), "model_optim_rng.pt is missing in mp_rank_01"));
  EXPECT_TRUE(contains(mismatch_text(found), "tp 1 of pp 0"));
}

TEST(ClassifyMismatch, RequireReadableThrowsAllAtOnce) {
  auto const clean = classify(named({"mp_rank_00"}), {});
  EXPECT_NO_THROW(require_readable(clean, "/ckpt"));
  auto const gap = classify(named({"mp_rank_00", "mp_rank_02"}), {});
  EXPECT_TRUE(sentence_of([&] { require_readable(gap, "/ckpt"); })
                  .starts_with("/ckpt: no file holds "
                               "tp 1 of pp 0"));
  auto const user =
      classify(named({"mp_rank_00_000_001"}), {.tp = {}, .pp = {}, .ep = 1, .etp = {}});
  EXPECT_TRUE(contains(sentence_of([&] { require_readable(user, "/ckpt"); }, ErrorKind::usage),
                       "Pass expert_parallel_size"));
}

}  // namespace
}  // namespace reshard::megatron
