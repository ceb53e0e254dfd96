#include "stages/plan/config/config_comparison.hpp"

#include <gtest/gtest.h>

#include "stages/plan/config/config_members.hpp"
#include "tests/stages/plan/config/config_samples.hpp"

namespace reshard {
namespace {

Keys differences(ModelDescription const& a, ModelDescription const& b) {
  ConfigComparison const found = compare_configs(a, b, MapLibrary({maps_folder()}));
  EXPECT_EQ(found.not_compared, "");
  Keys result;
  for (ConfigDifference const& one : found.differences)
    result.push_back(one.key + ": " + one.a + ", " + one.b);
  return result;
}

TEST(CompareConfigs, LooksAtWhatChangesTheFunction) {
  Json const plain = small("llama");
  Json const other = with(with(with(plain, {"use_cache"}, false), {"dtype"}, "float16"),
                          {"transformers_version"}, "5.0");
  EXPECT_EQ(differences({plain, {}}, {other, {}}), Keys());
  EXPECT_EQ(differences({plain, {}}, {with(plain, {"rms_norm_eps"}, 0.01), {}}),
            Keys{"rms_norm_eps: 1e-05, 0.01"});
  EXPECT_EQ(differences({with(plain, {"hidden_act"}, "gelu"), {}}, {plain, {}}),
            Keys{"hidden_act: \"gelu\", \"silu\""});
  EXPECT_EQ(differences({small("qwen2"), {}}, {small("qwen3"), {}}),
            Keys{"model_type: \"qwen2\", \"qwen3\""});
  EXPECT_EQ(differences({with(plain, {"rope_scaling"}, rope("linear")), {}}, {plain, {}}),
            (Keys{"rope_scaling.factor: 4.0, ", "rope_scaling.rope_type: \"linear\", "}));
}

TEST(CompareConfigs, KnowsBothPlacesOfRope) {
  Json parameters;
  parameters.set("rope_type", "default").set("rope_theta", 10000.0);
  Json now = with(small("qwen3"), {"rope_parameters"}, parameters);
  std::erase_if(*now.members(), [](auto const& member) { return member.first == "rope_theta"; });
  EXPECT_EQ(differences({small("qwen3"), {}}, {now, {}}), Keys());
}

TEST(CompareConfigs, MistralWithoutAWindowIsLlama) {
  EXPECT_EQ(differences({with(small("mistral"), {"sliding_window"}, {}), {}}, {small("llama"), {}}),
            Keys());
  EXPECT_EQ(differences({small("mistral"), {}}, {small("llama"), {}}),
            Keys{"sliding_window: 4096, "});
  EXPECT_EQ(differences({with(small("mistral"), {"sliding_window"}, 16), {}}, {small("llama"), {}}),
            Keys{"sliding_window: 16, "});
}

TEST(CompareConfigs, AHybridModelOfPairsIsAGptModel) {
  Json const config = small("llama");
  Json const args = args_of(maps_of(config), config);
  std::int64_t const layers = *args.find("num_layers")->integer();
  auto const hybrid = [&](std::string const& pair) {
    std::string pattern;
    for (std::int64_t i = 0; i < layers; ++i) pattern += pair;
    Json result = args;
    result.set("num_layers", 2 * layers).set("hybrid_layer_pattern", pattern);
    return result;
  };
  for (ModelDescription const& gpt : {ModelDescription{config, {}}, ModelDescription{{}, args}}) {
    EXPECT_EQ(differences(gpt, {{}, hybrid("*-")}), Keys());
    EXPECT_EQ(differences({{}, hybrid("*-")}, gpt), Keys());
  }
  EXPECT_NE(differences({config, {}}, {{}, hybrid("M-")}), Keys()) << "Mamba is no layer of a GPT";
}

TEST(CompareConfigs, ArgsStandForAConfig) {
  Json const config = with(small("mistral"), {"sliding_window"}, 16);
  Json args = args_of(maps_of(config), config);
  EXPECT_EQ(differences({config, {}}, {{}, args}), Keys());
  args.set("window_size", Json());
  EXPECT_EQ(differences({config, {}}, {{}, args}), Keys{"sliding_window: 16, "});
  EXPECT_EQ(differences({{}, args}, {config, {}}), Keys{"sliding_window: , 16"});
}

TEST(CompareConfigs, LayerTypesCount) {
  Json const full =
      Json::Array{"full_attention", "full_attention", "full_attention", "full_attention"};
  Json const sliding =
      Json::Array{"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  Json const chunked =
      Json::Array{"chunked_attention", "chunked_attention", "chunked_attention", "full_attention"};
  Json qwen = with(with(small("qwen2"), {"sliding_window"}, 6), {"use_sliding_window"}, true);
  Json llama4 =
      with(with(small("llama4_text"), {"num_local_experts"}, 4), {"intermediate_size_mlp"}, 60);
  std::vector<std::pair<Json, Json>> const cases = {
      {qwen, sliding},
      {with(small("gemma3_text"), {"sliding_window"}, 6), sliding},
      {llama4, chunked}};
  for (auto const& [config, types] : cases) {
    Keys const found = differences({with(config, {"layer_types"}, types), {}},
                                   {with(config, {"layer_types"}, full), {}});
    EXPECT_EQ(found, Keys{"layer_types: " + types.dump() + ", " + full.dump()}) << config.dump();
  }
  EXPECT_EQ(differences({llama4, {}}, {with(llama4, {"layer_types"}, chunked), {}}), Keys())
      << "what the class makes of no_rope_layers";
  EXPECT_EQ(differences({llama4, {}}, {with(llama4, {"use_qk_norm"}, false), {}}),
            Keys{"use_qk_norm: true, false"});
  EXPECT_EQ(differences({small("qwen2"), {}}, {with(small("qwen2"), {"layer_types"}, full), {}}),
            Keys());
}

TEST(CompareConfigs, DetailsOfScaledRotationsCount) {
  auto const with_rope = [](Json scaling) {
    return with(small("llama"), {"rope_scaling"}, std::move(scaling));
  };
  auto const shorter = [](Json const& config) {
    return with(config, {"max_position_embeddings"}, 64);
  };
  Json const whole = rope("yarn").set("original_max_position_embeddings", 32);
  for (Json const& config : {with_rope(rope("dynamic")), with_rope(rope("yarn"))})
    EXPECT_EQ(differences({config, {}}, {shorter(config), {}}),
              Keys{"max_position_embeddings: 128, 64"})
        << config.dump();
  for (Json const& config : {small("llama"), with_rope(whole), with_rope(rope("linear"))})
    EXPECT_EQ(differences({config, {}}, {shorter(config), {}}), Keys()) << config.dump();
  EXPECT_EQ(differences({with_rope(whole), {}},
                        {with(with_rope(whole), {"rope_scaling", "attention_factor"}, 1.0), {}}),
            Keys{"rope_scaling.attention_factor: , 1.0"});
  EXPECT_EQ(differences({with_rope(whole), {}},
                        {with(with_rope(whole), {"rope_scaling", "truncate"}, false), {}}),
            Keys{"rope_scaling.truncate: , false"});
  EXPECT_EQ(differences({with_rope(whole), {}},
                        {with(with_rope(whole), {"rope_scaling", "truncate"}, true), {}}),
            Keys());
}

TEST(CompareConfigs, PartsThatAreCarriedCount) {
  Json vision;
  vision.set("hidden_act", "gelu")
      .set("num_attention_heads", 4)
      .set("initializer_range", 0.02)
      .set("attention_dropout", 0.0);
  Json config;
  config.set("model_type", "llava").set("text_config", small("llama")).set("vision_config", vision);
  config.set("vision_feature_layer", -2)
      .set("image_token_index", 7)
      .set("projector_hidden_act", "gelu");
  auto const found = [&](std::vector<std::string> path, Json value) {
    return differences({config, {}}, {with(config, std::move(path), std::move(value)), {}});
  };
  EXPECT_EQ(found({"vision_config", "hidden_act"}, "relu"),
            Keys{"vision_config.hidden_act: \"gelu\", \"relu\""});
  EXPECT_EQ(found({"vision_config", "num_attention_heads"}, 2),
            Keys{"vision_config.num_attention_heads: 4, 2"});
  EXPECT_EQ(found({"vision_feature_layer"}, -1), Keys{"vision_feature_layer: -2, -1"});
  EXPECT_EQ(found({"image_token_index"}, 8), Keys{"image_token_index: 7, 8"});
  EXPECT_EQ(found({"projector_hidden_act"}, "relu"),
            Keys{"projector_hidden_act: \"gelu\", \"relu\""});
  EXPECT_EQ(found({"vision_config", "initializer_range"}, 0.5), Keys());
  EXPECT_EQ(found({"vision_config", "attention_dropout"}, 0.5), Keys());
  MapChoice const maps = maps_of(config);
  EXPECT_EQ(unheld_warning(*maps.family, maps.core, config, true), "") << "args need not say them";
}

TEST(CompareConfigs, MegatronArgsCountWithAndWithoutAConfig) {
  Json const config = small("llama");
  Json const args = args_of(maps_of(config), config);
  Json other = args;
  other.set("rotary_interleaved", true).set("norm_epsilon", 0.5).set("seq_length", 9);
  EXPECT_EQ(differences({{}, args}, {{}, args}), Keys());
  EXPECT_EQ(differences({{}, args}, {{}, other}),
            (Keys{"args.rotary_interleaved: , true", "args.norm_epsilon: 1e-05, 0.5"}));
  EXPECT_EQ(differences({config, args}, {config, other}),
            (Keys{"rms_norm_eps: 1e-05, 0.5", "args.rotary_interleaved: , true"}));
  EXPECT_EQ(differences({config, {}}, {{}, other}),
            (Keys{"rms_norm_eps: 1e-05, 0.5", "args.rotary_interleaved: , true"}));
  EXPECT_EQ(differences({config, other}, {config, other}), Keys());
}

TEST(CompareConfigs, SaysWhenThereIsNothingToCompare) {
  EXPECT_EQ(compare_configs({}, {}, MapLibrary({maps_folder()})).not_compared,
            "neither has a config.json");
  EXPECT_EQ(compare_configs({small("llama"), {}}, {}, MapLibrary({maps_folder()})).not_compared,
            "b has neither a config.json nor args");
}

}  // namespace
}  // namespace reshard
