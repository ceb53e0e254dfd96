#include "stages/plan/source/facts/stated_args.hpp"

#include <gtest/gtest.h>

#include "core/base/text/yaml.hpp"
#include "core/formats/format.hpp"
#include "tests/stages/plan/planning.hpp"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

MapLibrary const library({maps_folder()});

Checkpoint with_settings(std::string const& yaml) {
  Checkpoint checkpoint;
  checkpoint.format = &format_of(FormatId::torch_dist);
  checkpoint.names = NameOwner::megatron;
  checkpoint.shares.shape.emplace();
  checkpoint.shares.shape->settings = "run_config.yaml";
  checkpoint.shares.shape->facts = parse_yaml(yaml, "run_config.yaml");
  checkpoint.shares.shape->table = "megatron_bridge";
  return checkpoint;
}

std::string shown(Json const& args, char const* key) { return fact(args, key).dump(); }

constexpr char const* dense = R"(
num_layers: 2
hidden_size: 8
num_attention_heads: 4
num_query_groups: 2
activation_func: {_target_: torch.nn.functional.silu, _call_: false}
gated_linear_unit: true
share_embeddings_and_output_weights: false
layernorm_epsilon: 1.0e-05
layernorm_zero_centered_gamma: true
params_dtype: {_target_: torch.bfloat16, _call_: false}
rope_scaling: true
seq_length: 64
vocab_size: 50
mtp_num_layers: 0
)";

TEST(StatedArgs, FieldsOfAProviderBecomeMegatronsArgs) {
  Json const args = stated_args(with_settings(dense), library);
  EXPECT_EQ(shown(args, "num_layers"), "2");
  EXPECT_EQ(shown(args, "group_query_attention"), "true");
  EXPECT_EQ(shown(args, "swiglu"), "true");
  EXPECT_EQ(shown(args, "squared_relu"), "false");
  EXPECT_EQ(shown(args, "untie_embeddings_and_output_weights"), "true");
  EXPECT_EQ(shown(args, "norm_epsilon"), "1e-05");
  EXPECT_EQ(shown(args, "apply_layernorm_1p"), "true");
  EXPECT_EQ(shown(args, "params_dtype"), "\"torch.bfloat16\"");
  EXPECT_EQ(shown(args, "use_rope_scaling"), "true");
  EXPECT_EQ(shown(args, "max_position_embeddings"), "64");
  EXPECT_EQ(shown(args, "mtp_num_layers"), "null");
  EXPECT_EQ(shown(args, "num_experts"), "null");
}

TEST(StatedArgs, ABuildersConfigKeepsThemInATransformer) {
  Json const args = stated_args(with_settings(R"(
share_embeddings_and_output_weights: true
vocab_size: 50
transformer:
  num_layers: 3
  hidden_size: 8
  activation_func: squared_relu
  num_moe_experts: 4
  moe_layer_freq: [0, 1, 1]
)"),
                                library);
  EXPECT_EQ(shown(args, "num_layers"), "3");
  EXPECT_EQ(shown(args, "vocab_size"), "50");
  EXPECT_EQ(shown(args, "squared_relu"), "true");
  EXPECT_EQ(shown(args, "num_experts"), "4");
  EXPECT_EQ(shown(args, "moe_layer_freq"), "[0, 1, 1]");
  EXPECT_EQ(shown(args, "untie_embeddings_and_output_weights"), "false");
}

/// Layers of Megatron-Bridge 0.6.2 that know by themselves which of them look through the window.
TEST(StatedArgs, WindowsOfBridgesGemmaAreThoseOfItsLayers) {
  Json const gemma2 = stated_args(with_settings(R"(
_target_: megatron.bridge.models.gemma.gemma2_provider.Gemma2ModelProvider
num_layers: 4
hidden_size: 8
window_size: [4095, 0]
window_attn_skip_freq: null
rotary_base: 10000
)"),
                                  library);
  EXPECT_EQ(shown(gemma2, "window_size"), "[4095, 0]");
  EXPECT_EQ(shown(gemma2, "window_attn_skip_freq"), "2");
  EXPECT_EQ(shown(gemma2, "rotary_base"), "10000");
  Json const gemma3 = stated_args(with_settings(R"(
_target_: megatron.bridge.models.gemma.gemma3_provider.Gemma3ModelProvider
num_layers: 7
hidden_size: 8
window_size: 512
window_attn_skip_freq: null
interleaved_attn_pattern: [5, 1]
rotary_base: [10000.0, 1000000.0]
)"),
                                  library);
  EXPECT_EQ(shown(gemma3, "window_size"), "[511, 0]");
  EXPECT_EQ(shown(gemma3, "window_attn_skip_freq"), "6");
  EXPECT_EQ(shown(gemma3, "rotary_base"), "1000000.0");
}

TEST(StatedArgs, SettingsThatDescribeNoModelAreNone) {
  EXPECT_TRUE(stated_args(with_settings("{language_model: {num_layers: 2}}"), library).is_null());
  Checkpoint trainer = with_settings("{}");
  trainer.shares.shape->facts = {};
  trainer.shares.shape->origin = "args.json: model = m";
  trainer.run.args.set("tuner_type", "full");
  EXPECT_TRUE(stated_args(trainer, library).is_null());
  EXPECT_EQ(way_to_a_config(trainer),
            "Set source.config to the config.json of the same model (args.json: model = m)");
}

TEST(StatedArgs, ArgsOfTheCheckpointCountFirst) {
  Checkpoint checkpoint = with_settings(dense);
  checkpoint.run.args.set("num_layers", 7).set("hidden_size", 16);
  EXPECT_EQ(shown(stated_args(checkpoint, library), "num_layers"), "7");
}

TEST(StatedArgs, NumbersThatAreNoneAreRefused) {
  for (char const* text :
       {"rotary_base: .nan", "layernorm_epsilon: .inf", "softmax_scale: -.inf", "rotary_base: 1e6",
        "rotary_base: 1.5e3", "rotary_base: 0o17", "rotary_base: 1:60", "hidden_size: 08",
        "hidden_size: 8.0", "num_layers: two", "moe_layer_freq: [1, .nan]"}) {
    std::string const word = std::string(text).substr(0, std::string(text).find(':'));
    std::string yaml = dense;
    if (std::size_t const at = yaml.find(word + ":"); at != std::string::npos)
      yaml.erase(at, yaml.find('\n', at) + 1 - at);
    std::string const sentence = refused(
        ErrorKind::source, [&] { (void)stated_args(with_settings(yaml + text + "\n"), library); });
    EXPECT_NE(sentence.find("run_config.yaml: " + word + " is "), std::string::npos) << sentence;
    EXPECT_NE(sentence.find("Set source.config"), std::string::npos) << sentence;
  }
}

TEST(StatedArgs, NumbersInAnyFormOfYaml11AreNumbers) {
  for (char const* text : {"10_000", "2:46:40", "0x2710", "023420"}) {
    Json const args =
        stated_args(with_settings(dense + fmt::format("rotary_base: {}\n", text)), library);
    EXPECT_EQ(shown(args, "rotary_base"), "10000") << text;
  }
}

TEST(StatedArgs, WhatAFamilyNeedsMustBeStated) {
  MapFile const core = map_file("mcore");
  MapFile const family = map_file("qwen3_moe");
  auto const check = [&](std::string const& more) {
    Checkpoint const source = with_settings(dense + more);
    Model const described(core, core, {stated_args(source, library), "args"});
    check_settings(source, family, described, library);
  };
  std::string const experts = "num_moe_experts: 4\nmoe_ffn_hidden_size: 8\nffn_hidden_size: 16\n";
  EXPECT_NO_THROW(check(experts + "moe_router_topk: 2\n"));
  for (auto const& [more, words] :
       {std::pair(std::string(), "run_config.yaml: moe_router_topk is not stated, and models of "),
        std::pair(std::string("moe_router_topk: eight\n"), "moe_router_topk is \"eight\"")}) {
    std::string const sentence = refused(ErrorKind::source, [&] { check(experts + more); });
    EXPECT_NE(sentence.find(words), std::string::npos) << sentence;
    EXPECT_NE(sentence.find("(num_experts_per_tok of config.json)"), std::string::npos) << sentence;
  }
}

TEST(StatedArgs, AMissingTableIsNamed) {
  MapLibrary const empty({"/nonexistent"});
  std::string const sentence =
      refused(ErrorKind::usage, [&] { (void)stated_args(with_settings(dense), empty); });
  EXPECT_NE(sentence.find("settings/megatron_bridge.toml"), std::string::npos) << sentence;
}

}  // namespace
}  // namespace reshard::test
