#include "stages/plan/config/config_members.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <ostream>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/formats/huggingface/config.hpp"
#include "stages/plan/config/carried_config.hpp"
#include "stages/plan/config/config_comparison.hpp"
#include "stages/plan/source/map_choice.hpp"
#include "stages/plan/source/model_facts.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using huggingface::ConfigPatch;

fs::path maps_folder() { return fs::path(RESHARD_SOURCE_DIR) / "configs" / "models"; }

Json published(std::string const& name) {
  fs::path const path = fs::path(RESHARD_SOURCE_DIR) / "tests" / "data" / "configs" / (name + ".json");
  return parse_json(read_text_file(path, 1U << 20), path.string());
}

MapChoice maps_of(Json const& config) { return choose_maps("auto", {maps_folder()}, config, Json(), true); }

Json with(Json config, std::vector<std::string> path, Json value) {
  ConfigPatch const patch{std::move(path), std::move(value)};
  return huggingface::patched_config(std::move(config), std::span(&patch, 1));
}

/// The keys that Megatron's args cannot hold.
std::vector<std::string> unheld(Json const& config) {
  MapChoice const maps = maps_of(config);
  ConfigMembers const all(*maps.family, maps.core, config);
  std::vector<std::string> keys;
  for (ConfigMember const& member : all.members())
    if (!all.held(member)) keys.push_back(member.key);
  return keys;
}

using Keys = std::vector<std::string>;

struct Published {
  std::string name;
  Keys unheld;
};
void PrintTo(Published const& one, std::ostream* out) { *out << one.name; }

class PublishedMembers : public testing::TestWithParam<Published> {};

TEST_P(PublishedMembers, AreHeldButForThose) { EXPECT_EQ(unheld(published(GetParam().name)), GetParam().unheld); }

std::vector<Published> all_published() {
  std::map<std::string, Keys> const expected = {
      {"gemma3-1b", {"hidden_activation", "rope_local_base_freq"}},
      {"gemma3-27b", {"query_pre_attn_scalar", "rope_scaling.factor", "rope_scaling.rope_type", "hidden_activation", "rope_local_base_freq"}},
      {"gemma3-4b", {"rope_scaling.factor", "rope_scaling.rope_type", "hidden_activation", "rope_local_base_freq"}},
      {"llama4-maverick", {"attention_chunk_size", "attn_temperature_tuning", "floor_scale", "attn_scale"}},
      {"llama4-scout",
       {"attention_chunk_size", "rope_scaling.factor", "rope_scaling.high_freq_factor", "rope_scaling.low_freq_factor",
        "rope_scaling.original_max_position_embeddings", "rope_scaling.rope_type", "attn_temperature_tuning", "floor_scale", "attn_scale"}},
      {"qwen3-vl-235b-a22b", {"rope_scaling.mrope_interleaved"}},
      {"qwen3-vl-30b-a3b", {"rope_scaling.mrope_interleaved"}},
      {"qwen3-vl-8b", {"rope_scaling.mrope_interleaved"}},
      {"qwen3.5-397b", {"rope_parameters.mrope_section"}},
      {"qwen3.5-9b", {"rope_parameters.mrope_section"}}};
  std::vector<Published> result;
  for (auto const& entry : fs::directory_iterator(fs::path(RESHARD_SOURCE_DIR) / "tests" / "data" / "configs"))
    if (entry.path().extension() == ".json") {
      std::string const name = entry.path().stem().string();
      auto const known = expected.find(name);
      result.push_back({name, known == expected.end() ? Keys() : known->second});
    }
  std::sort(result.begin(), result.end(), [](auto const& a, auto const& b) { return a.name < b.name; });
  return result;
}

std::string test_name(testing::TestParamInfo<Published> const& one) {
  std::string name = one.param.name;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Configs, PublishedMembers, testing::ValuesIn(all_published()), test_name);

// --- settings -------------------------------------------------------------------------------------------------------

Json small(std::string const& type) {
  Json config;
  config.set("model_type", type).set("hidden_size", 48).set("num_hidden_layers", 4).set("num_attention_heads", 6).set("num_key_value_heads", 2);
  config.set("head_dim", 8).set("intermediate_size", 60).set("vocab_size", 90).set("max_position_embeddings", 128).set("rms_norm_eps", 1e-5);
  config.set("hidden_act", "silu").set("rope_theta", 10000.0).set("tie_word_embeddings", false);
  return config;
}

Json rope(std::string_view type) {
  Json scaling;
  scaling.set("rope_type", type).set("factor", 4.0);
  return scaling;
}

TEST(ConfigMembers, NoneOfAPlainModelIsLost) {
  for (char const* type : {"llama", "mistral", "qwen2", "qwen3"}) EXPECT_EQ(unheld(small(type)), Keys()) << type;
}

TEST(ConfigMembers, WindowsAreHeld) {
  EXPECT_EQ(unheld(with(small("mistral"), {"sliding_window"}, 16)), Keys());
  Json qwen = with(with(small("qwen2"), {"sliding_window"}, 16), {"use_sliding_window"}, true);
  EXPECT_EQ(unheld(with(qwen, {"max_window_layers"}, 2)), Keys());
  EXPECT_EQ(unheld(with(with(small("qwen2"), {"sliding_window"}, 16), {"use_sliding_window"}, false)), Keys());
}

TEST(ConfigMembers, RopeThatMegatronLacksIsNot) {
  EXPECT_EQ(unheld(with(small("llama"), {"rope_scaling"}, rope("linear"))), (Keys{"rope_scaling.rope_type", "rope_scaling.factor"}));
  EXPECT_EQ(unheld(with(small("qwen3"), {"rope_parameters"}, rope("dynamic"))), (Keys{"rope_parameters.rope_type", "rope_parameters.factor"}));
  EXPECT_EQ(unheld(with(small("qwen3"), {"rope_scaling"}, rope("yarn"))), Keys());
  EXPECT_EQ(unheld(with(small("qwen3"), {"rope_scaling"}, rope("yarn").set("attention_factor", 1.5))),
            (Keys{"rope_scaling.rope_type", "rope_scaling.factor", "rope_scaling.attention_factor"}));
  Json llama3 = rope("llama3").set("low_freq_factor", 1.0).set("high_freq_factor", 4.0).set("original_max_position_embeddings", 8192);
  EXPECT_EQ(unheld(with(small("llama"), {"rope_scaling"}, llama3)), Keys());
  EXPECT_EQ(unheld(with(small("llama"), {"rope_scaling"}, llama3.set("original_max_position_embeddings", 1024))).front(), "rope_scaling.rope_type");
}

TEST(ConfigMembers, OtherFunctionsAreNot) {
  EXPECT_EQ(unheld(with(small("llama"), {"hidden_act"}, "gelu")), Keys{"hidden_act"});
  EXPECT_EQ(unheld(with(small("llama"), {"final_logit_softcapping"}, 30.0)), Keys{"final_logit_softcapping"});
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
  EXPECT_EQ(args(with(mistral, {"layer_types"}, Json::Array{"full_attention", "sliding_attention", "full_attention", "full_attention"})),
            args(mistral));
  for (char const* type : {"llama", "mistral", "mixtral", "qwen2", "qwen3", "gpt_oss"})
    EXPECT_EQ(*args(with(small(type), {"partial_rotary_factor"}, 0.5)).find("rotary_percent"), Json(1.0)) << type;
  EXPECT_EQ(*args(with(small("glm4_moe"), {"partial_rotary_factor"}, 0.25)).find("rotary_percent"), Json(0.25));
  EXPECT_EQ(unheld(with(small("llama"), {"sliding_window"}, 4)), Keys());
  EXPECT_EQ(unheld(with(small("llama"), {"partial_rotary_factor"}, 0.5)), Keys());
}

TEST(ConfigMembers, DefaultsThatMegatronLacksAreNamed) {
  Json published_form;  // google/gemma-3-4b-it says no more of its text model
  published_form.set("model_type", "gemma3").set("text_config", with(small("gemma3_text"), {"hidden_activation"}, {}));
  std::erase_if(*published_form.members()->back().second.members(), [](auto const& member) { return member.first == "hidden_activation"; });
  EXPECT_EQ(unheld(published_form), (Keys{"query_pre_attn_scalar", "hidden_activation", "rope_local_base_freq"}));
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
    EXPECT_NE(error.sentence().find("args.norm_epsilon would be NaN, by 'rms_norm_eps'"), std::string::npos) << error.sentence();
  }
}

TEST(ConfigMembers, WarningsNameKeyAndValue) {
  MapChoice const maps = maps_of(small("llama"));
  EXPECT_EQ(
      unheld_warning(*maps.family, maps.core, with(small("llama"), {"rope_scaling"}, rope("linear")), true),
      "config.json says rope_scaling.rope_type = \"linear\", rope_scaling.factor = 4.0, which Megatron's args cannot hold: what is trained from "
      "this checkpoint computes something else. It is kept in huggingface/config.json");
  EXPECT_EQ(unheld_warning(*maps.family, maps.core, small("llama"), true), "");
}

// --- there and back ---------------------------------------------------------------------------------------------------

Json args_of(MapChoice const& maps, Json const& config) {
  return Json(Json::Object(Model(*maps.family, maps.core, {config, "config.json"}).evaluate(maps.family->args)));
}

Json made_again(Json const& config) {
  MapChoice const maps = maps_of(config);
  Json const args = args_of(maps, config);
  return config_from_args(*maps.family, Model(maps.core, maps.core, {args, "args"}));
}

TEST(ConfigFromArgs, SaysTheWindowsAgain) {
  Json const mistral = made_again(with(small("mistral"), {"sliding_window"}, 16));
  EXPECT_EQ(*mistral.find("architectures"), Json(Json::Array{"MistralForCausalLM"}));
  EXPECT_EQ(*mistral.find("sliding_window"), Json(16));
  EXPECT_EQ(*made_again(with(small("mistral"), {"sliding_window"}, {})).find("architectures"), Json(Json::Array{"LlamaForCausalLM"}));
  EXPECT_EQ(*made_again(small("mistral")).find("sliding_window"), Json(4096)) << "what MistralConfig takes where it is left out";
  Json const qwen = made_again(with(with(with(small("qwen2"), {"sliding_window"}, 16), {"use_sliding_window"}, true), {"max_window_layers"}, 3));
  EXPECT_EQ(*qwen.find("sliding_window"), Json(16));
  EXPECT_EQ(*qwen.find("use_sliding_window"), Json(true));
  EXPECT_EQ(*qwen.find("max_window_layers"), Json(3));
  EXPECT_EQ(*qwen.find("layer_types"), Json(Json::Array{"full_attention", "full_attention", "full_attention", "sliding_attention"}));
}

TEST(ConfigFromArgs, SaysLlamasBiasesAgain) {
  Json const config = with(with(small("llama"), {"attention_bias"}, true), {"mlp_bias"}, true);
  Json const args = args_of(maps_of(config), config);
  MapChoice const found = choose_maps("auto", {maps_folder()}, Json(), args, true);
  EXPECT_EQ(found.family->name, "llama.toml");
  Json const again = config_from_args(*found.family, Model(found.core, found.core, {args, "args"}));
  EXPECT_EQ(*again.find("attention_bias"), Json(true));
  EXPECT_EQ(*again.find("mlp_bias"), Json(true));
  EXPECT_EQ(*made_again(small("llama")).find("mlp_bias"), Json(false));
}

TEST(ConfigFromArgs, SaysYarnAgain) {
  Json const again = made_again(with(small("qwen3"), {"rope_parameters"}, rope("yarn").set("beta_fast", 16).set("rope_theta", 500.0)));
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
  Json const again = args_of(maps, config_from_args(*maps.family, Model(maps.core, maps.core, {args, "args"})));
  for (ArgDifference const& one : differing_args(*maps.family, maps.core, args, again))
    ADD_FAILURE() << one.name << ": " << one.first.dump() << " became " << one.second.dump();
}

// --- a config that travelled ------------------------------------------------------------------------------------------

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
  EXPECT_NE(std::find(revision.warnings.begin(), revision.warnings.end(),
                      "ckpt/huggingface: rope_theta was 10000.0, the checkpoint's args make it 500000. The target's config.json says that"),
            revision.warnings.end());
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
  Json const config = published("gemma3-1b");
  Json args = args_of(maps_of(config), config);
  EXPECT_TRUE(revised(config, args).changes.empty());
  args.set("rotary_base", 5);
  try {
    revised(config, args);
    FAIL();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    EXPECT_NE(error.sentence().find("args.rotary_base is 1000000"), std::string::npos) << error.sentence();
    EXPECT_NE(error.sentence().find("the checkpoint says 5"), std::string::npos) << error.sentence();
  }
}

TEST(RevisedConfig, NamesArgsThatNoMemberCanSay) {
  Json const config = small("llama");
  Json args = args_of(maps_of(config), config);
  args.set("rotary_interleaved", true).set("softmax_type", "off-by-one").set("no_rope_freq", Json()).set("glu_linear_offset", 0.0);
  ConfigRevision const revision = revised(config, args);
  EXPECT_TRUE(revision.changes.empty());
  ASSERT_EQ(revision.untold.size(), 2U);
  EXPECT_EQ(revision.untold[0].name, "rotary_interleaved");
  EXPECT_EQ(revision.untold[1].name, "softmax_type");
  EXPECT_EQ(
      revision.warnings.back(),
      "ckpt/huggingface: by its config.json args.softmax_type is null, the checkpoint says \"off-by-one\", and no member of config.json tells. It "
      "stays as it was: give target.reference if the model computes something else by now");
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
    for (ArgDifference const& arg : untold_args(*maps.family, maps.core, made, args)) names.push_back(arg.name);
    return names;
  };
  EXPECT_EQ(untold(), Keys());
  args.set("rotary_percent", 0.5).set("position_embedding_type", "none").set("apply_layernorm_1p", true).set("rotary_base", 77);
  EXPECT_EQ(untold(), (Keys{"position_embedding_type", "rotary_percent", "apply_layernorm_1p"}));
}

TEST(GuessedMembers, AreThoseThatArgsDoNotState) {
  Json const config = small("llama");
  MapChoice const maps = maps_of(config);
  Json args = args_of(maps, config);
  auto const guessed = [&] {
    return guessed_members(*maps.family, maps.core, args, config_from_args(*maps.family, Model(maps.core, maps.core, {args, "args"})));
  };
  EXPECT_EQ(guessed(), Keys());
  std::erase_if(*args.members(), [](auto const& member) { return member.first == "rotary_base" || member.first == "norm_epsilon"; });
  EXPECT_EQ(guessed(), (Keys{"rms_norm_eps = 1e-05", "rope_theta = 10000"}));
}

// --- two models ---------------------------------------------------------------------------------------------------------

Keys differences(ModelDescription const& a, ModelDescription const& b) {
  ConfigComparison const found = compare_configs(a, b, {maps_folder()});
  EXPECT_EQ(found.not_compared, "");
  Keys result;
  for (ConfigDifference const& one : found.differences) result.push_back(one.key + ": " + one.a + ", " + one.b);
  return result;
}

TEST(CompareConfigs, LooksAtWhatChangesTheFunction) {
  Json const plain = small("llama");
  Json const other = with(with(with(plain, {"use_cache"}, false), {"dtype"}, "float16"), {"transformers_version"}, "5.0");
  EXPECT_EQ(differences({plain, {}}, {other, {}}), Keys());
  EXPECT_EQ(differences({plain, {}}, {with(plain, {"rms_norm_eps"}, 0.01), {}}), Keys{"rms_norm_eps: 1e-05, 0.01"});
  EXPECT_EQ(differences({with(plain, {"hidden_act"}, "gelu"), {}}, {plain, {}}), Keys{"hidden_act: \"gelu\", \"silu\""});
  EXPECT_EQ(differences({small("qwen2"), {}}, {small("qwen3"), {}}), Keys{"model_type: \"qwen2\", \"qwen3\""});
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
  EXPECT_EQ(differences({with(small("mistral"), {"sliding_window"}, {}), {}}, {small("llama"), {}}), Keys());
  EXPECT_EQ(differences({small("mistral"), {}}, {small("llama"), {}}), Keys{"sliding_window: 4096, "});
  EXPECT_EQ(differences({with(small("mistral"), {"sliding_window"}, 16), {}}, {small("llama"), {}}), Keys{"sliding_window: 16, "});
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
  Json const full = Json::Array{"full_attention", "full_attention", "full_attention", "full_attention"};
  Json const sliding = Json::Array{"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  Json const chunked = Json::Array{"chunked_attention", "chunked_attention", "chunked_attention", "full_attention"};
  Json qwen = with(with(small("qwen2"), {"sliding_window"}, 6), {"use_sliding_window"}, true);
  Json llama4 = with(with(small("llama4_text"), {"num_local_experts"}, 4), {"intermediate_size_mlp"}, 60);
  for (auto const& [config, types] : {std::pair(qwen, sliding), {with(small("gemma3_text"), {"sliding_window"}, 6), sliding}, {llama4, chunked}}) {
    Keys const found = differences({with(config, {"layer_types"}, types), {}}, {with(config, {"layer_types"}, full), {}});
    EXPECT_EQ(found, Keys{"layer_types: " + types.dump() + ", " + full.dump()}) << config.dump();
  }
  EXPECT_EQ(differences({llama4, {}}, {with(llama4, {"layer_types"}, chunked), {}}), Keys()) << "what the class makes of no_rope_layers";
  EXPECT_EQ(differences({llama4, {}}, {with(llama4, {"use_qk_norm"}, false), {}}), Keys{"use_qk_norm: true, false"});
  EXPECT_EQ(differences({small("qwen2"), {}}, {with(small("qwen2"), {"layer_types"}, full), {}}), Keys());
}

TEST(CompareConfigs, DetailsOfScaledRotationsCount) {
  auto const with_rope = [](Json scaling) { return with(small("llama"), {"rope_scaling"}, std::move(scaling)); };
  auto const shorter = [](Json const& config) { return with(config, {"max_position_embeddings"}, 64); };
  Json const whole = rope("yarn").set("original_max_position_embeddings", 32);
  for (Json const& config : {with_rope(rope("dynamic")), with_rope(rope("yarn"))})
    EXPECT_EQ(differences({config, {}}, {shorter(config), {}}), Keys{"max_position_embeddings: 128, 64"}) << config.dump();
  for (Json const& config : {small("llama"), with_rope(whole), with_rope(rope("linear"))})
    EXPECT_EQ(differences({config, {}}, {shorter(config), {}}), Keys()) << config.dump();
  EXPECT_EQ(differences({with_rope(whole), {}}, {with(with_rope(whole), {"rope_scaling", "attention_factor"}, 1.0), {}}),
            Keys{"rope_scaling.attention_factor: , 1.0"});
  EXPECT_EQ(differences({with_rope(whole), {}}, {with(with_rope(whole), {"rope_scaling", "truncate"}, false), {}}),
            Keys{"rope_scaling.truncate: , false"});
  EXPECT_EQ(differences({with_rope(whole), {}}, {with(with_rope(whole), {"rope_scaling", "truncate"}, true), {}}), Keys());
}

TEST(CompareConfigs, PartsThatAreCarriedCount) {
  Json vision;
  vision.set("hidden_act", "gelu").set("num_attention_heads", 4).set("initializer_range", 0.02).set("attention_dropout", 0.0);
  Json config;
  config.set("model_type", "llava").set("text_config", small("llama")).set("vision_config", vision);
  config.set("vision_feature_layer", -2).set("image_token_index", 7).set("projector_hidden_act", "gelu");
  auto const found = [&](std::vector<std::string> path, Json value) {
    return differences({config, {}}, {with(config, std::move(path), std::move(value)), {}});
  };
  EXPECT_EQ(found({"vision_config", "hidden_act"}, "relu"), Keys{"vision_config.hidden_act: \"gelu\", \"relu\""});
  EXPECT_EQ(found({"vision_config", "num_attention_heads"}, 2), Keys{"vision_config.num_attention_heads: 4, 2"});
  EXPECT_EQ(found({"vision_feature_layer"}, -1), Keys{"vision_feature_layer: -2, -1"});
  EXPECT_EQ(found({"image_token_index"}, 8), Keys{"image_token_index: 7, 8"});
  EXPECT_EQ(found({"projector_hidden_act"}, "relu"), Keys{"projector_hidden_act: \"gelu\", \"relu\""});
  EXPECT_EQ(found({"vision_config", "initializer_range"}, 0.5), Keys());
  EXPECT_EQ(found({"vision_config", "attention_dropout"}, 0.5), Keys());
  EXPECT_EQ(unheld(config), Keys()) << "args need not say them";
}

TEST(CompareConfigs, MegatronArgsCountWithAndWithoutAConfig) {
  Json const config = small("llama");
  Json const args = args_of(maps_of(config), config);
  Json other = args;
  other.set("rotary_interleaved", true).set("norm_epsilon", 0.5).set("seq_length", 9);
  EXPECT_EQ(differences({{}, args}, {{}, args}), Keys());
  EXPECT_EQ(differences({{}, args}, {{}, other}), (Keys{"args.rotary_interleaved: , true", "args.norm_epsilon: 1e-05, 0.5"}));
  EXPECT_EQ(differences({config, args}, {config, other}), (Keys{"rms_norm_eps: 1e-05, 0.5", "args.rotary_interleaved: , true"}));
  EXPECT_EQ(differences({config, {}}, {{}, other}), (Keys{"rms_norm_eps: 1e-05, 0.5", "args.rotary_interleaved: , true"}));
  EXPECT_EQ(differences({config, other}, {config, other}), Keys());
}

TEST(CompareConfigs, SaysWhenThereIsNothingToCompare) {
  EXPECT_EQ(compare_configs({}, {}, {maps_folder()}).not_compared, "neither has a config.json");
  EXPECT_EQ(compare_configs({small("llama"), {}}, {}, {maps_folder()}).not_compared, "b has neither a config.json nor args");
}

}  // namespace
}  // namespace reshard
