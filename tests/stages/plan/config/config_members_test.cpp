#include "stages/plan/config/config_members.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <ostream>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "stages/plan/config/carried_config.hpp"
#include "stages/plan/source/facts/model_facts.hpp"
#include "tests/stages/plan/config/config_samples.hpp"

namespace reshard {
namespace {

/// The keys that Megatron's args cannot hold.
std::vector<std::string> unheld(Json const& config) {
  MapChoice const maps = maps_of(config);
  ConfigMembers const all(*maps.family, maps.core, config);
  std::vector<std::string> keys;
  for (ConfigMember const& member : all.members())
    if (!all.held(member)) keys.push_back(member.key);
  return keys;
}

struct Published {
  std::string name;
  Keys unheld;
};
void PrintTo(Published const& one, std::ostream* out) { *out << one.name; }

class PublishedMembers : public testing::TestWithParam<Published> {};

TEST_P(PublishedMembers, AreHeldButForThose) {
  Json const config = published(GetParam().name);
  MapChoice const maps = maps_of(config);
  if (!Model(*maps.family, maps.core, {config, "config.json"}).value("no_megatron").is_null())
    GTEST_SKIP() << "Megatron has no form of it";
  EXPECT_EQ(unheld(config), GetParam().unheld);
}

std::vector<Published> all_published() {
  std::map<std::string, Keys> const expected = {
      {"gemma3-1b", {"hidden_activation", "rope_local_base_freq"}},
      {"gemma3-27b",
       {"rope_scaling.factor", "rope_scaling.rope_type", "hidden_activation",
        "rope_local_base_freq"}},
      {"gemma3-4b",
       {"rope_scaling.factor", "rope_scaling.rope_type", "hidden_activation",
        "rope_local_base_freq"}},
      {"llama4-maverick",
       {"attention_chunk_size", "attn_temperature_tuning", "floor_scale", "attn_scale"}},
      {"llama4-scout",
       {"attention_chunk_size", "rope_scaling.factor", "rope_scaling.high_freq_factor",
        "rope_scaling.low_freq_factor", "rope_scaling.original_max_position_embeddings",
        "rope_scaling.rope_type", "attn_temperature_tuning", "floor_scale", "attn_scale"}},
      {"command-a", {"logit_scale"}},
      {"command-a-moe", {"logit_scale", "shared_expert_combination_strategy"}},
      {"command-r", {"logit_scale"}},
      {"gemma-2-27b", {"attn_logit_softcapping", "final_logit_softcapping", "hidden_activation"}},
      {"gemma-2b", {"hidden_act"}},
      {"gemma-4-26b-a4b",
       {"hidden_activation", "final_logit_softcapping", "rope_parameters.full_attention.rope_type",
        "rope_parameters.full_attention.partial_rotary_factor",
        "rope_parameters.sliding_attention.rope_theta"}},
      {"granite-3.0-3b-a800m", {"embedding_multiplier", "logits_scaling", "residual_multiplier"}},
      {"granite-3.1-8b", {"embedding_multiplier", "logits_scaling", "residual_multiplier"}},
      {"hunyuan-7b",
       {"architectures", "rope_scaling.type", "rope_scaling.alpha", "rope_scaling.factor",
        "rope_scaling.beta_fast", "rope_scaling.beta_slow", "rope_scaling.mscale",
        "rope_scaling.mscale_all_dim"}},
      {"hunyuan-a13b",
       {"architectures", "rope_scaling.type", "rope_scaling.alpha", "rope_scaling.factor",
        "rope_scaling.beta_fast", "rope_scaling.beta_slow", "rope_scaling.mscale",
        "rope_scaling.mscale_all_dim"}},
      {"internlm3-8b", {"rope_scaling.rope_type", "rope_scaling.factor"}},
      {"internvl3-8b-chat", {"rope_scaling.factor", "rope_scaling.rope_type"}},
      {"kimi-k3", {"attn_res_block_size", "linear_attn_config.gate_lower_bound"}},
      {"ling-2.5-1t", {"group_norm_size", "partial_rotary_factor"}},
      {"mimo-v2-flash", {"sliding_window", "attention_value_scale"}},
      {"minimax-m3",
       {"sparse_attention_config.sparse_num_index_heads",
        "sparse_attention_config.sparse_index_dim", "sparse_attention_config.sparse_block_size",
        "sparse_attention_config.sparse_topk_blocks",
        "sparse_attention_config.sparse_attention_freq"}},
      {"ministral-3-8b", {"rope_parameters.llama_4_scaling_beta"}},
      {"mistral-small-4", {"rope_parameters.llama_4_scaling_beta"}},
      {"muse-glimmer-30b",
       {"final_logit_softcapping", "qk_scale_factor", "output_multiplier", "post_norm_eps",
        "layer_rope_theta"}},
      {"olmo3-7b",
       {"rope_scaling.attention_factor", "rope_scaling.beta_fast", "rope_scaling.beta_slow",
        "rope_scaling.factor", "rope_scaling.original_max_position_embeddings",
        "rope_scaling.rope_type"}},
      {"qwen3-omni-30b", {"rope_scaling.interleaved", "rope_scaling.mrope_interleaved"}},
      {"qwen3-omni-30b-thinker", {"rope_scaling.interleaved", "rope_scaling.mrope_interleaved"}},
      {"qwen3-vl-235b-a22b", {"rope_scaling.mrope_interleaved"}},
      {"qwen3-vl-30b-a3b", {"rope_scaling.mrope_interleaved"}},
      {"qwen3-vl-8b", {"rope_scaling.mrope_interleaved"}},
      {"qwen3.5-397b", {"rope_parameters.mrope_section"}},
      {"qwen3.5-9b", {"rope_parameters.mrope_section"}}};
  std::vector<Published> result;
  for (auto const& entry :
       fs::directory_iterator(fs::path(RESHARD_SOURCE_DIR) / "tests" / "data" / "configs"))
    if (entry.path().extension() == ".json") {
      std::string const name = entry.path().stem().string();
      auto const known = expected.find(name);
      result.push_back({name, known == expected.end() ? Keys() : known->second});
    }
  std::sort(result.begin(), result.end(),
            [](auto const& a, auto const& b) { return a.name < b.name; });
  return result;
}

std::string test_name(testing::TestParamInfo<Published> const& one) {
  std::string name = one.param.name;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Configs, PublishedMembers, testing::ValuesIn(all_published()), test_name);

// --- settings
// -------------------------------------------------------------------------------------------------------

TEST(ConfigMembers, NoneOfAPlainModelIsLost) {
  for (char const* type : {"llama", "mistral", "qwen2", "qwen3"})
    EXPECT_EQ(unheld(small(type)), Keys()) << type;
}

TEST(ConfigMembers, WindowsAreHeld) {
  EXPECT_EQ(unheld(with(small("mistral"), {"sliding_window"}, 16)), Keys());
  Json qwen = with(with(small("qwen2"), {"sliding_window"}, 16), {"use_sliding_window"}, true);
  EXPECT_EQ(unheld(with(qwen, {"max_window_layers"}, 2)), Keys());
  EXPECT_EQ(
      unheld(with(with(small("qwen2"), {"sliding_window"}, 16), {"use_sliding_window"}, false)),
      Keys());
}

TEST(ConfigMembers, RopeThatMegatronLacksIsNot) {
  EXPECT_EQ(unheld(with(small("llama"), {"rope_scaling"}, rope("linear"))),
            (Keys{"rope_scaling.rope_type", "rope_scaling.factor"}));
  EXPECT_EQ(unheld(with(small("qwen3"), {"rope_parameters"}, rope("dynamic"))),
            (Keys{"rope_parameters.rope_type", "rope_parameters.factor"}));
  EXPECT_EQ(unheld(with(small("qwen3"), {"rope_scaling"}, rope("yarn"))), Keys());
  EXPECT_EQ(
      unheld(with(small("qwen3"), {"rope_scaling"}, rope("yarn").set("attention_factor", 1.5))),
      (Keys{"rope_scaling.rope_type", "rope_scaling.factor", "rope_scaling.attention_factor"}));
  Json llama3 = rope("llama3")
                    .set("low_freq_factor", 1.0)
                    .set("high_freq_factor", 4.0)
                    .set("original_max_position_embeddings", 8192);
  EXPECT_EQ(unheld(with(small("llama"), {"rope_scaling"}, llama3)), Keys());
  EXPECT_EQ(unheld(with(small("llama"), {"rope_scaling"},
                        llama3.set("original_max_position_embeddings", 1024)))
                .front(),
            "rope_scaling.rope_type");
}

TEST(ConfigMembers, OtherFunctionsAreNot) {
  EXPECT_EQ(unheld(with(small("llama"), {"hidden_act"}, "gelu")), Keys{"hidden_act"});
  EXPECT_EQ(unheld(with(small("llama"), {"final_logit_softcapping"}, 30.0)),
            Keys{"final_logit_softcapping"});
  EXPECT_EQ(unheld(with(small("llama"), {"logit_scale"}, 2.0)), Keys{"logit_scale"});
  EXPECT_EQ(unheld(with(small("llama"), {"logit_scale"}, 1.0)), Keys());
  EXPECT_EQ(unheld(with(small("llama"), {"rms_norm_eps"}, 0.01)), Keys());
}

TEST(ConfigMembers, KeysThatAClassIgnoresMakeNoArgs) {
  auto const args = [](Json const& config) {
    MapChoice const maps = maps_of(config);
    return args_from_config(*maps.family, maps.core, config);
  };
  for (char const* type : {"llama", "glm4_moe", "minimax_m2"})
    EXPECT_EQ(*args(with(small(type), {"sliding_window"}, 4)).find("window_size"), Json()) << type;
  Json const mistral = with(small("mistral"), {"sliding_window"}, 16);
  EXPECT_EQ(args(with(mistral, {"use_sliding_window"}, false)), args(mistral));
  EXPECT_EQ(args(with(mistral, {"layer_types"},
                      Json::Array{"full_attention", "sliding_attention", "full_attention",
                                  "full_attention"})),
            args(mistral));
  for (char const* type : {"llama", "mistral", "mixtral", "qwen2", "qwen3"})
    EXPECT_EQ(*args(with(small(type), {"partial_rotary_factor"}, 0.5)).find("rotary_percent"),
              Json(1.0))
        << type;
  EXPECT_EQ(*args(with(small("glm4_moe"), {"partial_rotary_factor"}, 0.25)).find("rotary_percent"),
            Json(0.25));
  EXPECT_EQ(unheld(with(small("llama"), {"sliding_window"}, 4)), Keys());
  EXPECT_EQ(unheld(with(small("llama"), {"partial_rotary_factor"}, 0.5)), Keys());
}

TEST(ConfigMembers, DefaultsThatMegatronLacksAreNamed) {
  Json published_form;  // google/gemma-3-4b-it says no more of its text model
  published_form.set("model_type", "gemma3")
      .set("text_config", with(small("gemma3_text"), {"hidden_activation"}, {}));
  std::erase_if(*published_form.members()->back().second.members(),
                [](auto const& member) { return member.first == "hidden_activation"; });
  EXPECT_EQ(unheld(published_form), (Keys{"hidden_activation", "rope_local_base_freq"}));
}

TEST(ConfigMembers, SpecialNumbersAreToldAndMakeNoArgs) {
  Json const nan = *parse_json(R"({"a": {"__float__": "NaN"}})", "test").find("a");
  EXPECT_EQ(unheld(with(small("llama"), {"logit_scale"}, nan)), Keys{"logit_scale"});
  EXPECT_EQ(shown_value(nan), "NaN");
  Json const config = with(small("llama"), {"rms_norm_eps"}, nan);
  MapChoice const maps = maps_of(config);
  try {
    refuse_special_numbers(*maps.family, args_from_config(*maps.family, maps.core, config));
    FAIL();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    EXPECT_NE(error.sentence().find("args.norm_epsilon would be NaN, from 'rms_norm_eps'"),
              std::string::npos)
        << error.sentence();
  }
}

TEST(ConfigMembers, WarningsNameKeyAndValue) {
  MapChoice const maps = maps_of(small("llama"));
  EXPECT_EQ(
      unheld_warning(*maps.family, maps.core,
                     with(small("llama"), {"rope_scaling"}, rope("linear")), true),
      "config.json states rope_scaling.rope_type = \"linear\", rope_scaling.factor = 4.0, which "
      "Megatron's args cannot hold: a model trained from this checkpoint computes something else. "
      "It is kept in huggingface/config.json");
  EXPECT_EQ(unheld_warning(*maps.family, maps.core, small("llama"), true), "");
}

// --- there and back
// ---------------------------------------------------------------------------------------------------

Json made_again(Json const& config) {
  MapChoice const maps = maps_of(config);
  Json const args = args_of(maps, config);
  return config_from_args(*maps.family, Model(maps.core, maps.core, {args, "args"}));
}

TEST(ConfigFromArgs, SaysTheWindowsAgain) {
  Json const mistral = made_again(with(small("mistral"), {"sliding_window"}, 16));
  EXPECT_EQ(*mistral.find("architectures"), Json(Json::Array{"MistralForCausalLM"}));
  EXPECT_EQ(*mistral.find("sliding_window"), Json(16));
  EXPECT_EQ(*made_again(with(small("mistral"), {"sliding_window"}, {})).find("architectures"),
            Json(Json::Array{"LlamaForCausalLM"}));
  EXPECT_EQ(*made_again(small("mistral")).find("sliding_window"), Json(4096))
      << "what MistralConfig takes where it is left out";
  Json const qwen = made_again(
      with(with(with(small("qwen2"), {"sliding_window"}, 16), {"use_sliding_window"}, true),
           {"max_window_layers"}, 3));
  EXPECT_EQ(*qwen.find("sliding_window"), Json(16));
  EXPECT_EQ(*qwen.find("use_sliding_window"), Json(true));
  EXPECT_EQ(*qwen.find("max_window_layers"), Json(3));
  EXPECT_EQ(*qwen.find("layer_types"), Json(Json::Array{"full_attention", "full_attention",
                                                        "full_attention", "sliding_attention"}));
}

TEST(ConfigFromArgs, SaysLlamasBiasesAgain) {
  Json const config = with(with(small("llama"), {"attention_bias"}, true), {"mlp_bias"}, true);
  Json const args = args_of(maps_of(config), config);
  MapChoice const found = MapLibrary({maps_folder()}).choose("auto", Json(), args, true);
  EXPECT_EQ(found.family->name, "llama.toml");
  Json const again = config_from_args(*found.family, Model(found.core, found.core, {args, "args"}));
  EXPECT_EQ(*again.find("attention_bias"), Json(true));
  EXPECT_EQ(*again.find("mlp_bias"), Json(true));
  EXPECT_EQ(*made_again(small("llama")).find("mlp_bias"), Json(false));
}

TEST(ConfigFromArgs, SaysYarnAgain) {
  Json const again = made_again(with(small("qwen3"), {"rope_parameters"},
                                     rope("yarn").set("beta_fast", 16).set("rope_theta", 500.0)));
  Json const& scaling = *again.find("rope_scaling");
  EXPECT_EQ(*scaling.find("rope_type"), Json("yarn"));
  EXPECT_EQ(*scaling.find("factor"), Json(4.0));
  EXPECT_EQ(*scaling.find("beta_fast"), Json(16));
  EXPECT_EQ(*scaling.find("original_max_position_embeddings"), Json(128));
}

/// Every arg that [config] looks at comes back, in every published model.
TEST_P(PublishedMembers, ArgsComeBackFromTheConfigMadeOfThem) {
  Json const config = published(GetParam().name);
  MapChoice const maps = maps_of(config);
  if (maps.family->config.empty()) GTEST_SKIP() << "no [config]";
  Json const args = args_of(maps, config);
  Json const again =
      args_of(maps, config_from_args(*maps.family, Model(maps.core, maps.core, {args, "args"})));
  for (ArgDifference const& one : differing_args(*maps.family, maps.core, args, again))
    ADD_FAILURE() << one.name << ": " << one.first.dump() << " became " << one.second.dump();
}

}  // namespace
}  // namespace reshard
