#include "stages/plan/source/facts/family_choice.hpp"

#include <fstream>

#include <gtest/gtest.h>

#include "stages/plan/config/args_meaning.hpp"
#include "stages/plan/config/carried_config.hpp"
#include "tests/stages/plan/config/config_samples.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

/// Args of a published model, as a Megatron checkpoint states them.
Json stated_by(char const* name) {
  Json const config = published(name);
  return args_of(maps_of(config), config);
}

MapChoice chosen_by(Json const& args) {
  return MapLibrary({maps_folder()}).choose("auto", Json(), args, true);
}

FamilyChoice settled(Json const& args, std::string const& origin) {
  PlanRequest request;
  request.read.library = MapLibrary({maps_folder()});
  return settled_family(chosen_by(args), request, args, origin);
}

TEST(FamilyChoice, GoesByWhatOnlyOneFamilyHolds) {
  Json const glm = stated_by("glm-5");
  EXPECT_EQ(chosen_by(glm).family->name, "deepseek_v32.toml");
  FamilyChoice const choice = settled(glm, "");
  ASSERT_TRUE(choice.family);
  EXPECT_EQ(choice.family->name, "glm_moe_dsa.toml");
  EXPECT_EQ(choice.warning, "");
  EXPECT_FALSE(settled(stated_by("deepseek-v3.2"), "").family);
}

TEST(FamilyChoice, GoesByAFamilyThatTheSettingsName) {
  std::string const origin = "run_config.yaml: hf_model_id = a/model";
  Json args = stated_by("qwen3-32b");
  args.set("bridge_family", "exaone4");
  EXPECT_EQ(chosen_by(args).family->name, "exaone4.toml");
  FamilyChoice const choice = settled(args, origin);
  EXPECT_FALSE(choice.family);
  EXPECT_EQ(choice.warning, "");
}

TEST(FamilyChoice, NamesFamiliesOfOneStructureWhereAModelIsNamed) {
  Json const args = stated_by("qwen3-next-80b");
  EXPECT_EQ(settled(args, "").warning, "") << "the first is as good";
  FamilyChoice const choice = settled(args, "run_config.yaml: hf_model_id = a/model");
  EXPECT_FALSE(choice.family);
  for (char const* words : {"qwen3_next is taken (run_config.yaml: hf_model_id = a/model)",
                            "qwen3_5_moe_text", "source.config", "model.map"})
    EXPECT_NE(choice.warning.find(words), std::string::npos) << choice.warning;
}

TEST(FamilyChoice, GoesByTheConfigOfTheModelThatItWasTrainedFrom) {
  ScratchFolder const folder("origin");
  std::ofstream(folder.path() / "config.json") << R"({"model_type": "qwen3_5_moe_text"})";
  FamilyChoice const choice = settled(stated_by("qwen3-next-80b"),
                                      "run_config.yaml: hf_model_id = " + folder.path().string());
  ASSERT_TRUE(choice.family);
  EXPECT_EQ(choice.family->name, "qwen3_5_moe_text.toml");
}

TEST(ArgsMeaning, OtherRowsAreRefused) {
  MapFile const core = MapLibrary({maps_folder()}).choose("mcore", {}, {}, false).core;
  Json args = stated_by("mixtral-8x22b");
  refuse_other_rows(core, args, "here");
  args.set("moe_mlp_glu_interleave_size", 8);
  try {
    refuse_other_rows(core, args, "here");
    ADD_FAILURE() << "nothing was refused";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    EXPECT_EQ(error.sentence().find("here: args.moe_mlp_glu_interleave_size = 8, so rows"), 0U)
        << error.sentence();
  }
  Json dense = stated_by("llama3-1b");
  refuse_other_rows(core, dense.set("moe_mlp_glu_interleave_size", 8), "here");
}

TEST(ArgsMeaning, UnknownArgumentsOfAModelAreNamed) {
  MapFile const core = MapLibrary({maps_folder()}).choose("mcore", {}, {}, false).core;
  Json args = stated_by("mixtral-8x22b");
  EXPECT_EQ(unknown_args_warning(core, nullptr, args), "");
  args.set("moe_new_gate", true).set("moe_newer_gate", false).set("new_log_place", "x");
  args.set("moe_router_load_balancing_type", "aux_loss").set("moe_token_drop_policy", "probs");
  std::string const warning = unknown_args_warning(core, nullptr, args);
  EXPECT_EQ(warning.find("the checkpoint's args have moe_new_gate = true, which is not known"), 0U)
      << warning;
  EXPECT_EQ(warning.find("moe_newer_gate"), std::string::npos) << warning;
}

TEST(ArgsMeaning, WhatAConfigCannotHoldIsUntold) {
  Json const config = small("llama");
  MapChoice const maps = maps_of(config);
  Json args = args_of(maps, config);
  EXPECT_TRUE(untold_args(*maps.family, maps.core, config, args).empty());
  args.set("mup_output_mult", 2.0).set("dsa_indexer_scoring_relu", true);
  EXPECT_TRUE(untold_args(*maps.family, maps.core, config, args).empty()) << "without use_mup";
  args.set("use_mup", true).set("moe_router_load_balancing_type", "quantile_balancing");
  std::vector<std::string> names;
  for (ArgDifference const& one : untold_args(*maps.family, maps.core, config, args))
    names.push_back(one.name);
  EXPECT_EQ(names, (std::vector<std::string>{"use_mup", "mup_output_mult",
                                             "moe_router_load_balancing_type"}));
}

}  // namespace
}  // namespace reshard
