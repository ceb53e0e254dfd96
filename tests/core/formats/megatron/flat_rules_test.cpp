#include "core/formats/megatron/state/flat_rules.hpp"

#include <gtest/gtest.h>

namespace reshard::megatron {
namespace {

using Sizes = std::vector<Index>;

/// Bucket sizes of the rules for aligned parameters; those of packed ones must be the same.
Sizes sizes_of(std::string const& args, FlatChunk const& chunk = {}) {
  Sizes aligned, packed;
  for (FlatRule const& rule : flat_rules(parse_json(args, "args"), chunk))
    (rule.alignment == 64 ? aligned : packed).push_back(rule.bucket_elements);
  EXPECT_EQ(aligned, packed);
  return aligned;
}

TEST(FlatRules, OneBucketWithoutOverlap) {
  EXPECT_EQ(sizes_of("{}"), Sizes{0});
  EXPECT_EQ(sizes_of(R"({"overlap_grad_reduce": false, "ddp_bucket_size": 5})"), Sizes{0});
  EXPECT_EQ(sizes_of("null"), Sizes{0}) << "a checkpoint without args";
}

TEST(FlatRules, OnlyTheFirstChunkHasSeveralBuckets) {
  std::string const args = R"({"overlap_grad_reduce": true, "ddp_bucket_size": 1500})";
  EXPECT_EQ(sizes_of(args), (Sizes{1500, 0}));
  EXPECT_EQ(sizes_of(args, {.first = false, .rank_elements = 0}), Sizes{0});
}

TEST(FlatRules, ANumberOfBucketsDividesTheRanksParameters) {
  std::string const args = R"({"overlap_grad_reduce": true, "ddp_num_buckets": 4})";
  EXPECT_EQ(sizes_of(args, {.first = true, .rank_elements = 1003}), (Sizes{250, 0}));
  EXPECT_EQ(sizes_of(args, {.first = true, .rank_elements = 3}), (Sizes{1, 0}));
}

TEST(FlatRules, TheDefaultGrowsWithTheRanksThatShareWeights) {
  EXPECT_EQ(sizes_of(R"({"overlap_grad_reduce": true})"), (Sizes{40'000'000, 0}));
  EXPECT_EQ(sizes_of(R"({"overlap_grad_reduce": true, "data_parallel_size": 64,
                         "context_parallel_size": 2})"),
            (Sizes{128'000'000, 64'000'000, 0}))
      << "releases before 0.10 did not count ranks along the context";
  EXPECT_EQ(sizes_of(R"({"overlap_grad_reduce": true, "data_parallel_size": 9223372036854775807,
                         "context_parallel_size": 9223372036854775807})")
                .back(),
            0);
}

TEST(FlatRules, NumbersThatAreNoneAreNotUsed) {
  EXPECT_EQ(sizes_of(R"({"overlap_grad_reduce": true, "ddp_bucket_size": -3})"),
            (Sizes{40'000'000, 0}));
  EXPECT_EQ(sizes_of(R"({"overlap_grad_reduce": 1, "ddp_bucket_size": 5})"), Sizes{0});
}

TEST(FlatRules, MessagesNameWhatArgsSay) {
  EXPECT_EQ(
      flat_rule_text(parse_json(R"({"overlap_grad_reduce": true, "ddp_bucket_size": 7})", "")),
      "overlap_grad_reduce = true, ddp_bucket_size = 7");
  EXPECT_EQ(flat_rule_text(Json()), "no overlap_grad_reduce");
}

}  // namespace
}  // namespace reshard::megatron
