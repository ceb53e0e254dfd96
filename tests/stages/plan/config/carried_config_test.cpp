#include "stages/plan/config/carried_config.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "stages/plan/source/facts/model_facts.hpp"
#include "tests/stages/plan/config/config_samples.hpp"

namespace reshard {
namespace {

ConfigRevision revised(Json const& config, Json const& args) {
  MapChoice const maps = maps_of(config);
  return revised_config(*maps.family, maps.core, config, args, "ckpt/huggingface");
}

TEST(RevisedConfig, StaysWhereArgsSayTheSame) {
  Json const config = with(small("mistral"), {"sliding_window"}, 16);
  Json const args = args_of(maps_of(config), config);
  EXPECT_TRUE(revised(config, args).changes.empty());
  EXPECT_TRUE(revised(config, args).warnings.empty());
  // As Megatron writes them after training with other settings for training alone.
  Json trained = args;
  trained.set("seq_length", 4096)
      .set("attention_dropout", 0.1)
      .set("vocab_size", Json())
      .set("padded_vocab_size", 128)
      .set("window_attn_skip_freq", Json());
  ConfigRevision const after = revised(config, trained);
  EXPECT_TRUE(after.changes.empty());
  EXPECT_TRUE(after.warnings.empty()) << after.warnings.front();
}

TEST(RevisedConfig, TakesWhatArgsSayByNow) {
  Json const config = with(small("mistral"), {"sliding_window"}, 16);
  Json args = args_of(maps_of(config), config);
  args.set("rotary_base", 500000).set("norm_epsilon", 1e-6).set("window_size", Json());
  ConfigRevision const revision = revised(config, args);
  Json const now = huggingface::patched_config(config, revision.changes);
  EXPECT_EQ(*now.find("rope_theta"), Json(500000));
  EXPECT_EQ(*now.find("rms_norm_eps"), Json(1e-6));
  EXPECT_EQ(*now.find("sliding_window"), Json()) << "left out it would mean 4096";
  EXPECT_EQ(revision.warnings.size(), 3U);
  EXPECT_NE(
      std::find(revision.warnings.begin(), revision.warnings.end(),
                "ckpt/huggingface: rope_theta was 10000.0, the checkpoint's args give 500000. The "
                "target's config.json has the latter"),
      revision.warnings.end());
}

TEST(RevisedConfig, KnowsThatANumberAndAListMayBeOnePattern) {
  Json const config = small("gemma2");  // every second layer has a window
  Json args = args_of(maps_of(config), config);
  ASSERT_EQ(*args.find("window_attn_skip_freq"), Json(2));
  Index const layers = *args.find("num_layers")->integer();
  for (Index const other : {0, 1}) {
    std::vector<Json> pattern;
    for (Index layer = 0; layer < layers; ++layer) pattern.emplace_back((layer + 1 + other) % 2);
    args.set("window_attn_skip_freq", Json(pattern));
    EXPECT_EQ(revised(config, args).changes.empty() && revised(config, args).warnings.empty(),
              other == 0);
  }
}

/// Megatron-Core's MLA has YaRN by default, of factor 1, which is plain RoPE.
TEST(RevisedConfig, KnowsThatYarnOfFactorOneIsNone) {
  Json const config = small("deepseek_v3");
  Json args = args_of(maps_of(config), config);
  args.set("rope_type", "yarn").set("rotary_scaling_factor", 1.0).set("mscale", 1.0);
  args.set("original_max_position_embeddings", 4096).set("mscale_all_dim", 0.0);
  ConfigRevision const same = revised(config, args);
  EXPECT_TRUE(same.changes.empty());
  EXPECT_TRUE(same.warnings.empty()) << same.warnings.front();
  args.set("rotary_scaling_factor", 40.0);
  Json const now = huggingface::patched_config(config, revised(config, args).changes);
  EXPECT_EQ(fact(now, "rope_scaling.factor"), Json(40.0));
}

TEST(RevisedConfig, KnowsWhereTransformersPutsRope) {
  Json parameters;
  parameters.set("rope_type", "default").set("rope_theta", 10000.0);
  Json config = with(small("qwen3"), {"rope_parameters"}, parameters);
  std::erase_if(*config.members(), [](auto const& member) { return member.first == "rope_theta"; });
  Json args = args_of(maps_of(config), config);
  args.set("rotary_base", 500000);
  Json const now = huggingface::patched_config(config, revised(config, args).changes);
  EXPECT_EQ(*now.find("rope_parameters")->find("rope_theta"), Json(500000));
  EXPECT_EQ(now.find("rope_theta"), nullptr);
}

TEST(RevisedConfig, IsRefusedWhereAFamilyCannotSayIt) {
  Json const config = published("exaone-4.5-33b");
  Json args = args_of(maps_of(config), config);
  EXPECT_TRUE(revised(config, args).changes.empty());
  args.set("rotary_base", 5);
  try {
    revised(config, args);
    FAIL();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    EXPECT_NE(error.sentence().find("args.rotary_base = 1000000"), std::string::npos)
        << error.sentence();
    EXPECT_NE(error.sentence().find("the checkpoint has 5"), std::string::npos) << error.sentence();
  }
}

TEST(RevisedConfig, NamesArgsThatNoMemberCanSay) {
  Json const config = small("llama");
  Json args = args_of(maps_of(config), config);
  args.set("rotary_interleaved", true)
      .set("softmax_type", "off-by-one")
      .set("no_rope_freq", Json())
      .set("glu_linear_offset", 0.0);
  ConfigRevision const revision = revised(config, args);
  EXPECT_TRUE(revision.changes.empty());
  ASSERT_EQ(revision.untold.size(), 2U);
  EXPECT_EQ(revision.untold[0].name, "rotary_interleaved");
  EXPECT_EQ(revision.untold[1].name, "softmax_type");
  EXPECT_EQ(revision.warnings.back(),
            "ckpt/huggingface: its config.json gives args.softmax_type = null, the checkpoint "
            "has \"off-by-one\". This config.json is the target's as it is: give "
            "target.reference if the model has been changed since");
}

TEST(RevisedConfig, GivesLlamaNoWindow) {
  Json const config = small("llama");
  Json args = args_of(maps_of(config), config);
  args.set("window_size", Json::Array{4, 0});
  ConfigRevision const revision = revised(config, args);
  EXPECT_TRUE(revision.changes.empty());
  ASSERT_EQ(revision.untold.size(), 1U);
  EXPECT_EQ(revision.untold.front().name, "window_size");
}

TEST(UntoldArgs, AreThoseThatTheMadeConfigDoesNotMakeAgain) {
  Json const config = small("qwen3");
  MapChoice const maps = maps_of(config);
  Json args = args_of(maps, config);
  auto const untold = [&] {
    Keys names;
    Json const made = config_from_args(*maps.family, Model(maps.core, maps.core, {args, "args"}));
    for (ArgDifference const& arg : untold_args(*maps.family, maps.core, made, args))
      names.push_back(arg.name);
    return names;
  };
  EXPECT_EQ(untold(), Keys());
  args.set("rotary_percent", 0.5)
      .set("position_embedding_type", "none")
      .set("apply_layernorm_1p", true)
      .set("rotary_base", 77);
  EXPECT_EQ(untold(), (Keys{"position_embedding_type", "rotary_percent", "apply_layernorm_1p"}));
}

TEST(GuessedMembers, AreThoseThatArgsDoNotState) {
  Json const config = small("llama");
  MapChoice const maps = maps_of(config);
  Json args = args_of(maps, config);
  auto const guessed = [&] {
    return guessed_members(
        *maps.family, maps.core, args,
        config_from_args(*maps.family, Model(maps.core, maps.core, {args, "args"})));
  };
  EXPECT_EQ(guessed(), Keys());
  std::erase_if(*args.members(), [](auto const& member) {
    return member.first == "rotary_base" || member.first == "norm_epsilon";
  });
  EXPECT_EQ(guessed(), (Keys{"rms_norm_eps = 1e-05", "rope_theta = 10000"}));
}

}  // namespace
}  // namespace reshard
