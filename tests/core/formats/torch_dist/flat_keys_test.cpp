#include "core/formats/torch_dist/state/flat_keys.hpp"

#include <gtest/gtest.h>

namespace reshard::dcp {
namespace {

TEST(FlatKeys, SayOptimizerGroupBufferAndBucket) {
  auto const key = parse_bucket_key(
      "chained_1.optimizer.distributed.dp_group_idx_12.gbuf_idx_3.dtype_(torch.bfloat16, "
      "torch.float32).bucket_idx_40.exp_avg_sq");
  ASSERT_TRUE(key);
  EXPECT_EQ(key->group.chain, 1);
  EXPECT_EQ(key->group.group, 12);
  EXPECT_EQ(key->buffer, 3);
  EXPECT_EQ(key->weights, "bfloat16");
  EXPECT_EQ(key->bucket, 40);
  EXPECT_FALSE(key->joined);
  EXPECT_EQ(key->slot, "exp_avg_sq");
}

TEST(FlatKeys, OfAGatheredGroupHaveNoBuckets) {
  auto const key = parse_bucket_key(
      "chained_0.optimizer.distributed.dp_group_idx_2.param_state.gbuf_idx_1.dtype_(torch.bfloat16)."
      "param");
  ASSERT_TRUE(key);
  EXPECT_EQ(key->group.group, 2);
  EXPECT_EQ(key->buffer, 1);
  EXPECT_EQ(key->weights, "bfloat16");
  EXPECT_TRUE(key->joined);
  EXPECT_EQ(key->slot, "param");
}

TEST(FlatKeys, AnOptimizerAloneHasNoPrefix) {
  auto const key = parse_group_key("optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1");
  ASSERT_TRUE(key);
  EXPECT_EQ(key->chain, 0);
  EXPECT_EQ(settings_name(*key), "optimizer");
}

TEST(FlatKeys, OtherKeysAreNone) {
  for (char const* key :
       {"optimizer.state.exp_avg.decoder.norm.weight", "optimizer.distributed.dp_group_idx_",
        "optimizer.distributed.dp_group_idx_0", "optimizer.distributed.dp_group_idx_-1.x",
        "chained_.optimizer.distributed.dp_group_idx_0.x", "", "decoder.norm.weight",
        "optimizer.distributed.dp_group_idx_99999999999999999999.x"})
    EXPECT_FALSE(parse_group_key(key)) << key;
  for (char const* rest :
       {"gbuf_idx_0.param", "gbuf_idx_0.dtype_(torch.bfloat16).bucket_idx_0.param",
        "gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.",
        "gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.a.b",
        "gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_x.a",
        "gbuf_idx_x.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.a",
        "gbuf_idx_0.dtype_(torch.bfloat16).(, torch.float32).bucket_idx_0.a", "param_state",
        "param_state.gbuf_idx_0.dtype_(torch.bfloat16).",
        "param_state.gbuf_idx_0.dtype_(torch.bfloat16).bucket_idx_0.param"})
    EXPECT_FALSE(parse_bucket_key(std::string("optimizer.distributed.dp_group_idx_0.") + rest))
        << rest;
}

}  // namespace
}  // namespace reshard::dcp
