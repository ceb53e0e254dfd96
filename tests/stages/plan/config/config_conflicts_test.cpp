#include "stages/plan/config/config_conflicts.hpp"

#include <fstream>

#include <gtest/gtest.h>

#include "core/formats/huggingface/config/config.hpp"
#include "stages/plan/config/expected_names.hpp"
#include "stages/plan/source/facts/model_facts.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string, std::less<>>;

fs::path maps_folder() { return fs::path(RESHARD_SOURCE_DIR) / "configs" / "models"; }

Json small(std::string const& type) {
  Json config;
  config.set("model_type", type)
      .set("hidden_size", 48)
      .set("num_hidden_layers", 2)
      .set("num_attention_heads", 6)
      .set("num_key_value_heads", 2);
  config.set("head_dim", 8)
      .set("intermediate_size", 60)
      .set("vocab_size", 90)
      .set("max_position_embeddings", 128)
      .set("rms_norm_eps", 1e-5);
  config.set("hidden_act", "silu").set("rope_theta", 10000.0).set("tie_word_embeddings", false);
  return config;
}

Json with(Json config, std::string const& key, Json value) {
  return config.set(key, std::move(value));
}

PlanRequest request() {
  PlanRequest result;
  result.target.format = FormatId::huggingface;
  result.read.library = MapLibrary({maps_folder()});
  return result;
}

MapChoice maps_of(Json const& config) {
  return MapLibrary({maps_folder()}).choose("auto", config, Json(), true);
}

Json args_of(Json const& config) {
  MapChoice const maps = maps_of(config);
  return Json(Json::Object(
      Model(*maps.family, maps.core, {config, "config.json"}).evaluate(maps.family->args)));
}

// --- two configs
// --------------------------------------------------------------------------------------------------------

std::string between(Json const& counts, Json const& other) {
  return contradiction({{counts, {}}, "A"}, {{other, {}}, "B"}, "A counts", request());
}

TEST(Contradiction, NamesEveryKeyAndBothValues) {
  Json const plain = small("llama");
  EXPECT_EQ(between(plain, plain), "");
  EXPECT_EQ(between(plain, with(plain, "use_cache", false)), "");
  EXPECT_EQ(
      between(with(with(plain, "rms_norm_eps", 0.1), "hidden_act", "gelu"), plain),
      "A and B contradict each other: hidden_act is \"gelu\" and \"silu\", rms_norm_eps is 0.1 and 1e-05. A counts");
  EXPECT_EQ(between(with(plain, "sliding_window", 4), plain), "")
      << "Llama's class does not look at it";
}

TEST(Contradiction, ShowsAValueThatIsUsual) {
  EXPECT_EQ(between(with(small("llama"), "hidden_act", "gelu"), small("llama")),
            "A and B contradict each other: hidden_act is \"gelu\" and \"silu\". A counts");
}

TEST(Contradiction, OfAnUnknownFamilySaysThatNothingWasCompared) {
  std::string const text = between(with(small("strange"), "rms_norm_eps", 0.1), small("strange"));
  EXPECT_NE(text.find("A and B differ, and whether this changes the model was not checked"),
            std::string::npos)
      << text;
}

// --- target.reference
// -----------------------------------------------------------------------------------------------------

std::vector<std::string> against(ModelDescription const& own, Json const& reference) {
  huggingface::Folder folder;
  folder.path = "/models/reference";
  folder.config = reference;
  return reference_warnings(own, folder, request());
}

TEST(Reference, OfTheSameModelIsTakenInSilence) {
  Json const config = small("mistral");
  EXPECT_TRUE(against({config, {}}, config).empty());
  EXPECT_TRUE(against({{}, args_of(config)}, config).empty());
  EXPECT_TRUE(against({config, args_of(config)}, config).empty());
  EXPECT_TRUE(against({}, config).empty());
}

TEST(Reference, ThatSaysOtherwiseThanArgsIsToldOf) {
  Json const config = small("mistral");
  for (auto const& [key, value] : std::vector<std::pair<std::string, Json>>{
           {"rms_norm_eps", 0.1}, {"rope_theta", 777}, {"sliding_window", 4}}) {
    std::vector<std::string> const texts = against({{}, args_of(config)}, with(config, key, value));
    ASSERT_EQ(texts.size(), 1U) << key;
    EXPECT_NE(texts.front().find(key + " is " + value.dump() + " and "), std::string::npos)
        << texts.front();
  }
}

TEST(Reference, MayKnowWhatArgsDoNotState) {
  Json const config = small("llama");
  Json args = args_of(config);
  std::erase_if(*args.members(), [](auto const& member) { return member.first == "rotary_base"; });
  EXPECT_TRUE(against({{}, args}, with(config, "rope_theta", 500000)).empty());
}

TEST(Reference, ThatSaysOtherwiseThanTheConfigThatTravelledIsToldOf) {
  Json const config = small("llama");
  std::vector<std::string> const texts =
      against({config, args_of(config)}, with(config, "hidden_act", "gelu"));
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_NE(texts.front().find("hidden_act is \"gelu\" and \"silu\""), std::string::npos)
      << texts.front();
}

TEST(Reference, OfAnotherFamilyIsToldOf) {
  std::vector<std::string> const texts = against({small("llama"), {}}, small("qwen3"));
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_NE(texts.front().find("model_type is \"qwen3\" and \"llama\""), std::string::npos)
      << texts.front();
}

TEST(Reference, OfOtherSizesIsRefused) {
  Json const config = small("llama");
  for (auto const& [key, value] :
       std::vector<std::pair<std::string, int>>{{"num_key_value_heads", 3},
                                                {"num_hidden_layers", 3},
                                                {"vocab_size", 80},
                                                {"hidden_size", 96}}) {
    try {
      against({config, {}}, with(config, key, value));
      ADD_FAILURE() << key;
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::source);
      EXPECT_NE(error.sentence().find(
                    fmt::format("{} is {} and {}", key, value, config.find(key)->dump())),
                std::string::npos)
          << error.sentence();
    }
  }
}

// --- names
// ------------------------------------------------------------------------------------------------------------------

Names names_of(Json const& config) {
  MapChoice const maps = maps_of(config);
  Model model(*maps.family, maps.core, {config, "config.json"});
  Side const side(model, *maps.family, SideOptions{});
  apply_family(model, side);
  Names result;
  for (StoredName const& name : side.names(nullptr)) result.insert(name.name);
  return result;
}

TEST(ExpectedNames, AreAllThere) {
  for (char const* type : {"llama", "qwen3", "mistral"}) {
    auto const found =
        expected_names(small(type), names_of(small(type)), MapLibrary({maps_folder()}));
    ASSERT_TRUE(found) << type;
    EXPECT_EQ(found->lacking, std::vector<std::string>()) << type;
    EXPECT_GT(found->count, 20U);
  }
}

TEST(ExpectedNames, OfAnotherFamilyLack) {
  auto const found =
      expected_names(small("qwen3"), names_of(small("llama")), MapLibrary({maps_folder()}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->lacking.size(), 4U);
  EXPECT_EQ(found->lacking.front(), "model.layers.0.self_attn.q_norm.weight");
  EXPECT_FALSE(found->most_lack());
}

TEST(ExpectedNames, OfNoFamilyMostlyLack) {
  auto const found = expected_names(small("llama"), Names{"attn.q", "attn.k", "embed"},
                                    MapLibrary({maps_folder()}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->lacking.size(), found->count);
  EXPECT_TRUE(found->most_lack());
  EXPECT_NE(lacking_sentence(*found, Names{"attn.q"}, "config.json")
                .find("transformers would fill them with random values"),
            std::string::npos);
}

TEST(ExpectedNames, MayBeStoredInParts) {
  Names parts;
  for (std::string const& name : names_of(small("llama")))
    parts.insert(name.ends_with("proj.weight") ? name.substr(0, name.size() - 6) + "qweight"
                                               : name);
  auto const found = expected_names(small("llama"), parts, MapLibrary({maps_folder()}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->lacking, std::vector<std::string>());
}

TEST(ExpectedNames, OfAnUnknownFamilyAreUnknown) {
  EXPECT_FALSE(expected_names(small("strange"), {}, MapLibrary({maps_folder()})));
}

TEST(RepeatedNames, AreThoseOfTiedWeights) {
  Names names = names_of(small("llama"));
  EXPECT_TRUE(repeated_names(small("llama"), names, MapLibrary({maps_folder()})).empty());
  Json const tied = with(small("llama"), "tie_word_embeddings", true);
  std::map<std::string, RepeatedName, std::less<>> const both = {
      {"lm_head.weight", {"embed", "model.embed_tokens.weight"}},
      {"model.embed_tokens.weight", {"embed", ""}}};
  EXPECT_EQ(repeated_names(tied, names, MapLibrary({maps_folder()})), both);
  names.erase("lm_head.weight");
  EXPECT_TRUE(repeated_names(tied, names, MapLibrary({maps_folder()})).empty());
  EXPECT_TRUE(repeated_names(small("strange"), names, MapLibrary({maps_folder()})).empty());
}

TEST(RepeatedNames, AreThoseOfPredictionLayers) {
  Json const config = with(small("deepseek_v3"), "num_nextn_predict_layers", 1);
  std::string const layer =
      fmt::format("model.layers.{}.", *config.find("num_hidden_layers")->integer());
  Names const names{"model.embed_tokens.weight", layer + "embed_tokens.weight",
                    layer + "enorm.weight"};
  std::map<std::string, RepeatedName, std::less<>> const both = {
      {layer + "embed_tokens.weight", {"embed", "model.embed_tokens.weight"}},
      {"model.embed_tokens.weight", {"embed", ""}}};
  EXPECT_EQ(repeated_names(config, names, MapLibrary({maps_folder()})), both);
}

// --- layers for multi-token prediction
// --------------------------------------------------------------------------------------

TEST(PredictionLayers, ChangeTheMembersThatCountThem) {
  Json const config = with(small("deepseek_v3"), "num_nextn_predict_layers", 1);
  auto const changes = prediction_layer_changes(*maps_of(config).family, config, 0);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes.front().path, std::vector<std::string>{"num_nextn_predict_layers"});
  EXPECT_EQ(*changes.front().value, Json(0));
}

}  // namespace
}  // namespace reshard
