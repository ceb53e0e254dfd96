// Names of trainers against those of Hugging Face: by patterns, the longest first.
#include "stages/plan/source/names/trainer_names.hpp"

#include <gtest/gtest.h>

namespace reshard {
namespace {

MapFile const& qwen() {
  static MapFile const map = parse_map_file(
      "[kept.bridge]\n'vision_model.decoder.*' = true\n'vision_model.patch_embed.*' = 'model.visual.patch_embed.*'\n"
      "[kept.swift]\n'visual.visual.*' = ['visual.*', 'model.visual.*']\n"
      "[kept.flat]\n'visual.*' = ['visual.*', 'model.visual.*']\n"
      "[kept.slime]\nroot = 'lm.'\ndrop = ['model.visual.x']\n'vision_model.*' = 'model.visual.*'\n",
      "qwen.toml");
  return map;
}

TEST(TrainerNames, AreReadFromAMap) {
  ASSERT_EQ(qwen().kept.size(), 4U);
  EXPECT_EQ(qwen().kept[0].root, "language_model.");
  EXPECT_TRUE(has_own(qwen().kept[0]));
  EXPECT_FALSE(has_own(qwen().kept[1]));
  EXPECT_EQ(qwen().kept[3].root, "lm.");
  EXPECT_EQ(qwen().kept[3].drop, std::vector<std::string>{"model.visual.x"});
}

TEST(TrainerNames, AStarStandsForTheSameTextEverywhere) {
  EXPECT_EQ(star_of("a.*.c", "a.b.c"), "b");
  EXPECT_EQ(star_of("a.*", "a."), "");
  EXPECT_EQ(star_of("a.b", "a.b"), "");
  EXPECT_EQ(star_of("a.*.a", "a.a"), std::nullopt) << "two ends do not share a letter";
  EXPECT_EQ(star_of("a.b", "a.bc"), std::nullopt);
  auto const part = part_of_trainer(qwen().kept[1], "visual.visual.blocks.0.norm");
  ASSERT_TRUE(part);
  EXPECT_EQ(family_names(*part),
            (std::vector<std::string>{"visual.blocks.0.norm", "model.visual.blocks.0.norm"}));
  EXPECT_EQ(trainer_name(*part_of_family(qwen().kept[1], "model.visual.blocks.0.norm")),
            "visual.visual.blocks.0.norm");
}

TEST(TrainerNames, OfSeveralNamesOfHuggingFaceTheLongestThatFitsIsMeant) {
  MapFile const map = parse_map_file("[kept.t]\n'v.*' = ['v.*', 'v.inner.*']\n", "m.toml");
  EXPECT_EQ(trainer_name(*part_of_family(map.kept[0], "v.inner.a")), "v.a");
  EXPECT_EQ(trainer_name(*part_of_family(map.kept[0], "v.a")), "v.a");
}

TEST(TrainerNames, TheTrainerIsTheOneWhosePatternsSayMost) {
  auto const of = [](std::vector<std::string> const& names) {
    MapKept const* found = trainer_of(qwen().kept, names);
    return found == nullptr ? std::string() : found->name;
  };
  EXPECT_EQ(of({"vision_model.decoder.layers.0.x", "vision_model.patch_embed.proj.weight"}),
            "bridge");
  EXPECT_EQ(of({"vision_model.blocks.0.x", "vision_model.patch_embed.proj.weight"}), "slime");
  EXPECT_EQ(of({"visual.visual.blocks.0.x"}), "swift");
  EXPECT_EQ(of({"visual.blocks.0.x"}), "flat");
  EXPECT_EQ(of({"model.visual.blocks.0.x"}), "");
}

TEST(TrainerNames, PatternsMustHaveAsManyStars) {
  try {
    parse_map_file("[kept.t]\n'a.*' = 'b'\n", "m.toml");
    FAIL();
  } catch (Error const& error) {
    EXPECT_EQ(error.sentence(), "m.toml:2: 'a.*' and 'b' need one '*' each, or none");
  }
}

}  // namespace
}  // namespace reshard
