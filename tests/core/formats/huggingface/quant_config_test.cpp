// What config.json and hf_quant_config.json say of quantised weights.
#include "core/formats/huggingface/config/quant_config.hpp"

#include <fstream>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/mapping/quant_finder.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

using Lines = std::vector<std::string>;

constexpr char const* family = R"(
let = { L = 2, M = 0 }
axes = { hidden = 128, inter = 256, expert = 3, layer = 2, vocab = 8 }
[tensors]
"" = ["embed: vocab hidden", "lm_head: vocab hidden"]
layer = ["router: expert hidden", "norm: hidden"]
"layer expert" = ["experts.up: inter hidden"]
[stored]
"model.embed_tokens.weight" = "embed: vocab hidden"
"lm_head.weight" = "lm_head: vocab hidden"
"model.layers.{layer}.mlp.gate.weight" = "router: expert hidden"
"model.layers.{layer}.norm.weight" = "norm: hidden"
"model.layers.{layer}.experts.{expert}.up_proj.weight" = "experts.up: inter hidden"
)";

Lines excluded() { return {"lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"}; }

/// How the experts of a layer are stored: the parts beside (or instead of) their weight.
using Parts = std::map<std::string, FoundTensor>;
Parts const bf16{{"weight", {DType::bf16, {256, 128}}}};
Parts const nvfp4{{"weight", {DType::u8, {256, 64}}},
                  {"weight_scale", {DType::f8_e4m3, {256, 8}}},
                  {"weight_scale_2", {DType::f32, {}}},
                  {"input_scale", {DType::f32, {}}}};
Parts const fp8{{"weight", {DType::f8_e4m3, {256, 128}}},
                {"weight_scale", {DType::f32, {}}},
                {"input_scale", {DType::f32, {}}}};
Parts const tiles{{"weight", {DType::f8_e4m3, {256, 128}}},
                  {"weight_scale_inv", {DType::f32, {2, 1}}}};
Parts const int4{{"weight_packed", {DType::i32, {256, 16}}},
                 {"weight_scale", {DType::bf16, {256, 4}}},
                 {"weight_shape", {DType::i64, {2}}}};

Parts with(Parts parts, std::string const& name, FoundTensor found) {
  parts[name] = std::move(found);
  return parts;
}
Parts without(Parts parts, std::string const& name) {
  parts.erase(name);
  return parts;
}

class QuantConfigTest : public testing::Test {
 protected:
  /// Describes a model whose layers are stored so.
  void describe(std::vector<Parts> const& layers, std::string const& config, Json const& known = {},
                std::string const& facts = "{}", std::string const& inner = "",
                bool of_source = false) {
    map_ = parse_map_file(family, "m.toml");
    map_.quant =
        load_map_file(std::string(RESHARD_SOURCE_DIR) + "/configs/models/quant.toml").quant;
    Model model(map_, map_, {parse_json(facts, "config"), "config.json", 0});
    model.set_schemes(evaluate_schemes(map_, model));
    Parts table;
    for (std::size_t layer = 0; layer < layers.size(); ++layer)
      for (int expert = 0; expert < 3; ++expert)
        for (auto const& [part, found] : layers[layer])
          table[fmt::format("model.layers.{}.experts.{}.up_proj.{}", layer, expert, part)] = found;
    Side const source(model, map_, {});
    QuantFinder finder(model, source);
    finder.look(
        {}, source.names(nullptr),
        [&](std::string const& name) {
          auto const found = table.find(name);
          return found == table.end() ? std::nullopt : std::optional(found->second);
        },
        "folder");
    finder.apply(model);
    Side const side(model, map_, {});
    if (!config.empty()) job_.texts.push_back({"config.json", config, false, {}});
    describe_quantised(job_, model, side, side.names(nullptr), known, inner, of_source);
  }
  void add_sidecar(std::string const& text) {
    std::ofstream(scratch_.path() / "hf_quant_config.json") << text;
    job_.reference.emplace();
    job_.reference->path = scratch_.path();
    job_.reference->sidecars = {"hf_quant_config.json", "tokenizer.json"};
  }
  std::string text(std::string const& path) const {
    for (TextFile const& file : job_.texts)
      if (file.path == path) return file.text;
    return "";
  }
  Json stated() const {
    return *parse_json(text("config.json"), "config.json").find("quantization_config");
  }
  Json sidecar() const { return parse_json(text("hf_quant_config.json"), "hf_quant_config.json"); }
  static Json at(Json json, Lines const& path) {
    for (std::string const& key : path) {
      Json const* found = json.find(key);
      json = found == nullptr ? Json("absent") : Json(*found);
    }
    return json;
  }
  static Json names(Lines const& list) { return Json(Json::Array(list.begin(), list.end())); }

  MapFile map_;
  TargetDraft job_;
  ScratchFolder scratch_{"quant_config"};
};

TEST_F(QuantConfigTest, OneAlgorithmIsNamedOnce) {
  describe({nvfp4, nvfp4}, R"({"a": 1})");
  EXPECT_EQ(
      at(sidecar(), {"quantization"}).dump(),
      R"({"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": null, "exclude_modules": ["lm_head", "model.layers.0.mlp.gate", )"
      R"("model.layers.1.mlp.gate"]})");
  EXPECT_EQ(at(sidecar(), {"producer", "name"}), Json("modelopt"));
  EXPECT_EQ(at(stated(), {"quant_algo"}), Json("NVFP4"));
  EXPECT_EQ(at(stated(), {"quant_method"}), Json("modelopt"));
  EXPECT_EQ(at(stated(), {"ignore"}), names(excluded()));
  Json const group = at(stated(), {"config_groups", "group_0"});
  EXPECT_EQ(at(group, {"targets"}), names({"Linear"}));
  EXPECT_EQ(at(group, {"weights"}).dump(),
            R"({"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16})");
  EXPECT_EQ(at(group, {"input_activations"}), at(group, {"weights"}));
  EXPECT_EQ(at(stated(), {"quantized_layers"}), Json("absent"));
  EXPECT_EQ(text("config.json").find(R"({"a": 1)"), 0U);
}

TEST_F(QuantConfigTest, WithoutAScaleOfTheInputWeightsAloneAreQuantised) {
  describe({without(nvfp4, "input_scale"), without(nvfp4, "input_scale")}, "{}");
  EXPECT_EQ(at(sidecar(), {"quantization", "quant_algo"}), Json("W4A16_NVFP4"));
  EXPECT_EQ(at(stated(), {"config_groups", "group_0", "input_activations"}), Json("absent"));
}

TEST_F(QuantConfigTest, AScaleForEachColumnOfTheInputIsSaid) {
  Parts const smoothed = with(nvfp4, "pre_quant_scale", {DType::bf16, {128}});
  describe({smoothed, smoothed}, "{}");
  EXPECT_EQ(at(sidecar(), {"quantization", "quant_algo"}), Json("NVFP4_AWQ"));
}

TEST_F(QuantConfigTest, MixedAlgorithmsListEveryExpertOfEveryLayer) {
  describe({nvfp4, fp8}, "{}");
  EXPECT_EQ(at(sidecar(), {"quantization", "quant_algo"}), Json("MIXED_PRECISION"));
  EXPECT_EQ(at(sidecar(), {"quantization", "group_size"}), Json("absent"));
  Json const layers = at(sidecar(), {"quantization", "quantized_layers"});
  ASSERT_EQ(layers.members()->size(), 6U);
  for (int expert = 0; expert < 3; ++expert) {
    EXPECT_EQ(at(layers, {fmt::format("model.layers.0.experts.{}.up_proj", expert)}).dump(),
              R"({"quant_algo": "NVFP4", "group_size": 16})");
    EXPECT_EQ(at(layers, {fmt::format("model.layers.1.experts.{}.up_proj", expert)}).dump(),
              R"({"quant_algo": "FP8"})");
  }
  EXPECT_EQ(at(stated(), {"quantized_layers"}), layers);
  Json const groups = at(stated(), {"config_groups"});
  ASSERT_EQ(groups.members()->size(), 2U);
  for (auto const& [name, group] : *groups.members())
    EXPECT_EQ(at(group, {"targets"}).items()->size(), 3U) << name;
}

TEST_F(QuantConfigTest, AnUnquantisedLayerIsExcluded) {
  describe({fp8, bf16}, "{}");
  EXPECT_EQ(at(sidecar(), {"quantization", "quant_algo"}), Json("FP8"));
  Json const list = at(sidecar(), {"quantization", "exclude_modules"});
  EXPECT_EQ(list.items()->size(), 3U + 3U);
  EXPECT_NE(list.dump().find("model.layers.1.experts.2.up_proj"), std::string::npos) << list.dump();
  EXPECT_EQ(list.dump().find("norm"), std::string::npos);
  EXPECT_EQ(list.dump().find("embed"), std::string::npos);
}

TEST_F(QuantConfigTest, OtherThingsOfASidecarAreKept) {
  add_sidecar(
      R"({"producer": {"name": "modelopt", "version": "0.33"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})");
  describe(
      {nvfp4, nvfp4},
      R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8}}, "b": 2})");
  EXPECT_EQ(at(sidecar(), {"producer", "version"}), Json("0.33"));
  EXPECT_EQ(at(sidecar(), {"quantization", "kv_cache_quant_algo"}), Json("FP8"));
  EXPECT_EQ(at(sidecar(), {"quantization", "quant_algo"}), Json("NVFP4"));
  EXPECT_EQ(at(stated(), {"kv_cache_scheme", "num_bits"}), Json(8));
  EXPECT_EQ(job_.reference->sidecars, (std::vector<std::string>{"tokenizer.json"}));
}

/// A tied model: the head is not stored, and the list is all that keeps it from being quantised.
constexpr char const* tied_list = R"(["lm_head", "model.embed_tokens", "*.mlp.gate"])";

TEST_F(QuantConfigTest, ATrueDescriptionStaysByteForByte) {
  std::string const config = fmt::format(
      R"({{"quantization_config":  {{"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "ignore": {}}}}})",
      tied_list);
  add_sidecar(fmt::format(
      R"({{"quantization": {{"quant_algo": "NVFP4", "has_zero_point": false, "group_size": 16, "exclude_modules": {}}}}})",
      tied_list));
  describe({nvfp4, nvfp4}, config);
  EXPECT_EQ(text("config.json"), config);
  EXPECT_EQ(job_.texts.size(), 1U);
  EXPECT_EQ(job_.reference->sidecars.size(), 2U) << "hf_quant_config.json is copied";
}

TEST_F(QuantConfigTest, TheSourcesOwnMayBeSilentAboutRouters) {
  std::string const config =
      R"({"quantization_config": {"quant_algo": "FP8", "ignore": ["lm_head"]}})";
  describe({fp8, fp8}, config, {}, "{}", "", true);
  EXPECT_EQ(text("config.json"), config);
  job_.texts.clear();
  describe({fp8, bf16}, config, {}, "{}", "", true);
  EXPECT_NE(at(stated(), {"ignore"}).dump().find("layers.1.experts.0.up_proj"), std::string::npos)
      << "a layer that is not quantised beside one of the same name that is";
  job_.texts.clear();
  describe({fp8, fp8}, config);
  EXPECT_EQ(at(stated(), {"ignore"}), names(excluded())) << "another model's is completed";
}

TEST_F(QuantConfigTest, ModulesAroundQuantisedOnesMayBeListed) {
  std::string const config =
      R"({"quantization_config": {"quant_algo": "MIXED_PRECISION", "quantized_layers": )"
      R"({"model.layers.0.experts": {"quant_algo": "NVFP4", "group_size": 16}, "model.layers.1.experts": {"quant_algo": "FP8"}}}})";
  describe({nvfp4, fp8}, config);
  EXPECT_EQ(text("config.json"), config);
  job_.texts.clear();
  describe({fp8, nvfp4}, config);
  EXPECT_EQ(at(stated(), {"quantized_layers"}).members()->size(), 6U) << "it is not true";
}

TEST_F(QuantConfigTest, WhatIsNoLongerTrueGoesAlone) {
  add_sidecar(
      R"({"quantization": {"quant_algo": "FP8", "has_zero_point": true, "exclude_modules": ["lm_head", "model.embed_tokens", "model.layers.0.experts.1.up_proj"]}})");
  describe(
      {nvfp4, nvfp4},
      R"({"quantization_config": {"quant_algo": "FP8", "pre_quant_scale": true, "ignore": ["model.embed_tokens"]}})");
  EXPECT_EQ(at(sidecar(), {"quantization", "has_zero_point"}), Json(true));
  EXPECT_EQ(at(stated(), {"pre_quant_scale"}), Json(true));
  EXPECT_EQ(at(sidecar(), {"quantization", "exclude_modules"}),
            names({"lm_head", "model.embed_tokens", "model.layers.0.mlp.gate",
                   "model.layers.1.mlp.gate"}));
  EXPECT_EQ(at(stated(), {"ignore"}),
            names({"model.embed_tokens", "lm_head", "model.layers.0.mlp.gate",
                   "model.layers.1.mlp.gate"}));
}

TEST_F(QuantConfigTest, NothingQuantisedIsNotSpokenOf) {
  add_sidecar(R"({"producer": {"name": "modelopt"}})");
  describe({bf16, bf16}, R"({"a": 1, "quantization_config": {"quant_method": "fp8"}, "b": 2})");
  EXPECT_EQ(parse_json(text("config.json"), "c"), parse_json(R"({"a": 1, "b": 2})", "c"));
  EXPECT_EQ(job_.texts.size(), 1U);
  EXPECT_EQ(job_.reference->sidecars, (std::vector<std::string>{"tokenizer.json"}));
}

TEST_F(QuantConfigTest, AConfigThatSaysNothingStaysAsItIs) {
  std::string const config = "{\"a\":  1}\n";
  describe({bf16, bf16}, config);
  EXPECT_EQ(text("config.json"), config);
}

TEST_F(QuantConfigTest, AnotherMethodsConfigStaysAsItIs) {
  std::string const config =
      "{\"quantization_config\": {\"quant_method\": \"fp8\",  \"weight_block_size\": [128, 128]}}\n";
  describe({tiles, tiles}, config);
  EXPECT_EQ(text("config.json"), config);
  EXPECT_EQ(job_.texts.size(), 1U);
}

TEST_F(QuantConfigTest, ASchemeOfModelOptUnderAnotherMethodStaysAsItIs) {
  std::string const config =
      R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}})";
  describe({fp8, fp8}, config);
  EXPECT_EQ(text("config.json"), config);
}

TEST_F(QuantConfigTest, WithoutOneTheConfigOfTilesIsMade) {
  describe({tiles, bf16}, "{}");
  Json const made = stated();
  EXPECT_EQ(at(made, {"quant_method"}), Json("fp8"));
  EXPECT_EQ(at(made, {"fmt"}), Json("e4m3"));
  EXPECT_EQ(at(made, {"weight_block_size"}).dump(), "[128, 128]");
  EXPECT_EQ(at(made, {"modules_to_not_convert"}).items()->size(), 6U);
  EXPECT_EQ(text("hf_quant_config.json"), "");
}

TEST_F(QuantConfigTest, TheSourcesConfigIsTakenWhereThereIsNoOther) {
  Json const known =
      parse_json(R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})", "args");
  describe({int4, int4}, R"({"a": 1})", known);
  EXPECT_EQ(stated(), known);
}

TEST_F(QuantConfigTest, WhatCannotBeDescribedIsRefused) {
  try {
    describe({int4, int4}, R"({"a": 1})");
    FAIL();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_EQ(error.sentence().find(
                  "[target] reference: the weights are quantised (compressed-tensors), and how "
                  "config.json describes that is not known."),
              0U)
        << error.sentence();
  }
}

TEST_F(QuantConfigTest, TheConfigOfALanguageModelInsideAnotherCounts) {
  std::string const config =
      R"({"text_config": {"quantization_config": {"quant_method": "compressed-tensors"}}})";
  describe({int4, int4}, config, {}, "{}", "text_config");
  EXPECT_EQ(text("config.json"), config);
  describe({bf16, bf16}, "", {}, "{}", "text_config");
  EXPECT_EQ(at(parse_json(text("config.json"), "config.json"), {"text_config"}).dump(), "{}");
  job_.texts.clear();
  describe({bf16, bf16}, R"({"a": {"b": {"quantization_config": {}}}})", {}, "{}", "a.b");
  EXPECT_EQ(at(parse_json(text("config.json"), "config.json"), {"a", "b"}).dump(), "{}");
}

TEST_F(QuantConfigTest, TwoMethodsAreRefused) {
  try {
    describe({int4, fp8}, "{}");
    FAIL();
  } catch (Error const& error) {
    EXPECT_NE(error.sentence().find("(compressed-tensors, modelopt)"), std::string::npos)
        << error.sentence();
  }
}

TEST_F(QuantConfigTest, WithoutAConfigThereIsNothingToSay) {
  describe({fp8, fp8}, "");
  EXPECT_TRUE(job_.texts.empty());
}

}  // namespace
}  // namespace reshard
