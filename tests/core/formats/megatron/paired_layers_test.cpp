#include "core/formats/megatron/mcore/paired_layers.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/mapping/sides/side.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/sample_models.hpp"

namespace reshard::megatron {
namespace {

namespace fs = std::filesystem;

Json hybrid_args(std::string const& pattern, int layers) {
  return Json::object()
      .set("num_layers", layers)
      .set("hidden_size", 8)
      .set("is_hybrid_model", true)
      .set("hybrid_layer_pattern", pattern);
}

std::string shown(Json const& args, char const* key) {
  Json const* value = args.find(key);
  return value == nullptr ? "none" : value->dump();
}

TEST(UnpairedArgs, HaveHalfAsManyLayersAndNoPattern) {
  UnpairedArgs const found = unpaired_args(hybrid_args("*-*-*-", 6));
  EXPECT_EQ(shown(found.args, "num_layers"), "3");
  EXPECT_EQ(shown(found.args, "hybrid_layer_pattern"), "null");
  EXPECT_EQ(shown(found.args, "is_hybrid_model"), "null");
  EXPECT_EQ(shown(found.args, "moe_layer_freq"), "none");
}

TEST(UnpairedArgs, SayWhichLayersHaveExpertsAndWhichAttention) {
  EXPECT_EQ(shown(unpaired_args(hybrid_args("*E*E", 4)).args, "moe_layer_freq"), "1");
  EXPECT_EQ(shown(unpaired_args(hybrid_args("*-*E*E", 6)).args, "moe_layer_freq"), "[0, 1, 1]");
  Json const latent = unpaired_args(hybrid_args("+-+E", 4)).args;
  EXPECT_EQ(shown(latent, "multi_latent_attention"), "true");
  Json const nets = unpaired_args(hybrid_args("GEGE*E", 6)).args;
  EXPECT_EQ(shown(nets, "experimental_attention_variant"), "\"gated_delta_net\"");
  EXPECT_EQ(shown(nets, "linear_attention_freq"), "[1, 1, 0]");
  EXPECT_EQ(shown(unpaired_args(hybrid_args("DE", 2)).args, "experimental_attention_variant"),
            "\"dsa\"");
}

TEST(UnpairedArgs, StagesBecomeALayout) {
  UnpairedArgs const found = unpaired_args(hybrid_args("*-|*-*-", 6));
  EXPECT_EQ(shown(found.args, "pipeline_model_parallel_layout"), "\"Et|ttL\"");
  Json uneven = hybrid_args("*-*-*-", 6);
  uneven.set("decoder_first_pipeline_num_layers", 2);
  EXPECT_EQ(shown(unpaired_args(uneven).args, "decoder_first_pipeline_num_layers"), "1");
}

TEST(UnpairedArgs, WhatIsNoPairsIsNamed) {
  auto const why = [](std::string const& pattern) {
    UnpairedArgs const found = unpaired_args(hybrid_args(pattern, 4));
    EXPECT_TRUE(found.args.is_null()) << pattern;
    return found.why;
  };
  EXPECT_EQ(why("*-M-"), "has 'M' as layer 2, where attention is expected");
  EXPECT_EQ(why("**--"), "has '*' as layer 1, where an MLP or experts is expected");
  EXPECT_EQ(why("*-*"), "ends with attention");
  EXPECT_EQ(why("*-*-/*-"), "has layers for multi-token prediction");
  EXPECT_EQ(why("*|-*-"), "has a pipeline stage that ends between attention and MLP");
}

std::string pattern_of(std::string const& family, Json const& config) {
  MapFile const map = test::map_file(family);
  Model model(map, test::map_file("mcore"), {config, "config.json"});
  apply_family(model, Side(model, map, SideOptions{}));
  Json const layers = model.value("L");
  for (auto const& [key, value] : paired_args(model, *layers.integer(), "[target]"))
    if (key == "hybrid_layer_pattern") return *value.text();
  return "";
}

Json sample_config(std::string const& family) {
  for (test::SampleModel const& sample : test::sample_models())
    if (sample.family == family) return sample.config;
  ADD_FAILURE() << "no sample of " << family;
  return {};
}

TEST(PairedArgs, ThePatternHasTwoLettersForEachLayer) {
  Json dense = sample_config("qwen3");
  dense.set("num_hidden_layers", 3);
  EXPECT_EQ(pattern_of("qwen3", dense), "*-*-*-");
  Json experts = sample_config("qwen3_moe");
  experts.set("num_hidden_layers", 2);
  experts.set("mlp_only_layers", Json(Json::Array{Json(0)}));
  EXPECT_EQ(pattern_of("qwen3_moe", experts), "*-*E");
}

TEST(PairedArgs, AreReadAsTheSameModelAgain) {
  Json experts = sample_config("qwen3_moe");
  experts.set("num_hidden_layers", 4);
  experts.set("mlp_only_layers", Json(Json::Array{Json(1)}));
  std::string const pattern = pattern_of("qwen3_moe", experts);
  EXPECT_EQ(shown(unpaired_args(hybrid_args(pattern, 8)).args, "moe_layer_freq"), "[1, 0, 1, 1]");
}

TEST(PairedArgs, WhatAHybridModelCannotHoldIsRefused) {
  fs::path const published = fs::path(RESHARD_SOURCE_DIR) / "tests/data/configs/deepseek-v3.json";
  Json const with_prediction = parse_json(read_text_file(published, 1 << 20), "deepseek-v3.json");
  try {
    pattern_of("deepseek_v3", with_prediction);
    ADD_FAILURE() << "not refused";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(error.sentence().find("multi-token prediction"), std::string::npos)
        << error.sentence();
  }
}

TEST(PairedArgs, ALayerWithoutAttentionIsNoPair) {
  fs::path const published =
      fs::path(RESHARD_SOURCE_DIR) / "tests/data/configs/granite-4-h-small.json";
  Json const config = parse_json(read_text_file(published, 1 << 20), "granite-4-h-small.json");
  test::expect_refused(ErrorKind::usage,
                       "[target] model = \"hybrid\": layer 0 has no attention, so it is not two",
                       [&] { pattern_of("granitemoehybrid", config); });
}

}  // namespace
}  // namespace reshard::megatron
