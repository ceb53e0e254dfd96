#include "core/mapping/maps/map_library.hpp"

#include "stages/plan/source/facts/model_facts.hpp"
#include "tests/stages/plan/planning.hpp"

namespace reshard::test {
namespace {

MapChoice chosen(std::string const& map, Json const& config, Json const& args, bool need_family) {
  return MapLibrary({maps_folder()}).choose(map, config, args, need_family);
}

std::string refusal(std::string const& map, Json const& config, Json const& args,
                    bool need_family) {
  return refused(ErrorKind::usage, [&] { chosen(map, config, args, need_family); });
}

TEST(MapChoice, GoesByTheModelTypeOfTheConfig) {
  SampleModel const sample = sample_model("qwen3_moe");
  EXPECT_EQ(chosen("auto", sample.config, {}, true).family->name, "qwen3_moe.toml");
  EXPECT_EQ(chosen("auto", sample.config, sample_model("llama").args, true).family->name,
            "qwen3_moe.toml")
      << "the config counts before args";
}

TEST(MapChoice, GoesByAConditionWhereTwoMapsHaveTheType) {
  Json config = Json().set("model_type", "qwen3_asr");
  EXPECT_EQ(chosen("auto", config, {}, true).family->name, "qwen3_asr.toml");
  config.set("thinker_config", Json().set("model_type", "qwen3_asr_thinker"));
  EXPECT_EQ(chosen("auto", config, {}, true).family->name, "qwen3_asr_thinker.toml");
  EXPECT_EQ(chosen("qwen3_asr", config, {}, true).family->name, "qwen3_asr.toml");
}

TEST(MapChoice, GoesByArgsWhereThereIsNoConfig) {
  EXPECT_EQ(chosen("auto", {}, sample_model("mixtral").args, true).family->name, "mixtral.toml");
}

TEST(MapChoice, TakesWhatIsNamed) {
  EXPECT_EQ(chosen("llama", sample_model("qwen3").config, {}, false).family->name, "llama.toml");
  EXPECT_FALSE(chosen("mcore", sample_model("qwen3").config, {}, false).family);
  std::string const path = (maps_folder() / "llama.toml").string();
  EXPECT_EQ(chosen(path, {}, {}, false).family->name, "llama.toml");
  EXPECT_EQ(chosen("auto", {}, {}, false).core.name, "mcore.toml");
}

TEST(MapChoice, NeedsAFamilyOnlyForItsNames) {
  EXPECT_FALSE(chosen("auto", sample_model("llama").config, {}, false).family);
}

TEST(MapChoice, SaysWhatIsKnown) {
  auto const expect_says = [](std::string const& sentence, std::string_view words) {
    EXPECT_NE(sentence.find(words), std::string::npos) << sentence;
  };
  expect_says(refusal("lama", {}, {}, false), "there is no such map. Did you mean 'llama'?");
  expect_says(refusal("/no/such.toml", {}, {}, false), "there is no such file");
  expect_says(refusal("auto", Json().set("model_type", "strange"), {}, true),
              "no map describes model_type 'strange' of config.json");
  expect_says(
      refusal("auto", {}, {}, true),
      "no map's condition holds for what the checkpoint's args describe. Set source.config");
  expect_says(refusal("auto", Json().set("model_type", "lama"), {}, true),
              "no map describes model_type 'lama' of config.json. Did you mean 'llama'?");
  expect_says(refusal("auto", Json().set("hidden_size", std::int64_t{1}), {}, true),
              "config.json has no model_type");
  expect_says(
      refused(ErrorKind::usage, [] { MapLibrary({"/nowhere"}).choose("auto", {}, {}, false); }),
      "model maps: no *.toml in /nowhere");
}

/// A model as its args, or its config, describe it.
struct Described {
  Described(SampleModel const& sample, bool by_args)
      : family(map_file(sample.family)),
        core(map_file("mcore")),
        model(by_args ? core : family, core,
              {by_args ? sample.args : sample.config, by_args ? "args" : "config.json", 0}) {}
  MapFile family, core;
  Model model;
};

TEST(AxisConflict, IsFoundByNameAndBothSizes) {
  SampleModel sample = sample_model("llama");
  EXPECT_FALSE(
      axis_conflict(Described(sample, false).model, Described(sample, true).model, sample.args));
  SampleModel other = sample;
  other.args.set("ffn_hidden_size", 64);
  auto const conflict =
      axis_conflict(Described(sample, false).model, Described(other, true).model, other.args);
  ASSERT_TRUE(conflict);
  EXPECT_EQ(conflict->by_config, 48);
  EXPECT_EQ(conflict->by_args, 64);
}

TEST(AxisConflict, PaddedRowsOfAVocabularyThatArgsDoNotStateAreNone) {
  SampleModel sample = sample_model("llama");
  sample.args.set("vocab_size", Json());
  EXPECT_FALSE(
      axis_conflict(Described(sample, false).model, Described(sample, true).model, sample.args));
}

TEST(ConfigOfArgs, MakesTheConfigOfTheSample) {
  SampleModel const sample = sample_model("llama");
  Described const described(sample, true);
  Json const config = config_from_args(described.family, described.model);
  for (char const* key : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "intermediate_size", "tie_word_embeddings"})
    EXPECT_EQ(*config.find(key), *sample.config.find(key)) << key;
  EXPECT_EQ(config.find("rope_scaling"), nullptr) << "a member of members that are all null";
}

}  // namespace
}  // namespace reshard::test
