#include "core/formats/megatron/mcore/hybrid_pattern.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/formats/megatron/mcore/args.hpp"

namespace reshard::megatron {
namespace {

using Texts = std::vector<std::string>;

Json args_with(std::string const& pattern, int layers) {
  return Json::object().set("num_layers", layers).set("hybrid_layer_pattern", pattern);
}

std::vector<Index> stage_sizes(PipelineSpec const& spec) {
  std::vector<Index> result;
  for (PipelineChunk const& chunk : pipeline_chunks(spec)) {
    Index count = 0;
    for (Run const& run : chunk.decoder) count += run.end - run.begin;
    result.push_back(count);
  }
  return result;
}

Json written(Json const& source, MeshSizes const& sizes, PipelineSpec pipeline) {
  Json result = source;
  for (auto& [key, value] : target_args({sizes, std::move(pipeline), 0}, source))
    result.set(key, std::move(value));
  return result;
}

std::string refusal(Json const& args) {
  try {
    check_hybrid_pattern(args, "M*-E", "here");
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    return error.sentence();
  }
  return "";
}

TEST(HybridPattern, HasStagesAndDepths) {
  auto const pattern = hybrid_pattern(args_with("M*|-M|E/*E/*E", 5));
  ASSERT_TRUE(pattern);
  EXPECT_EQ(pattern->stages, (Texts{"M*", "-M", "E"}));
  EXPECT_EQ(pattern->behind, "/*E/*E");
  EXPECT_EQ(pattern->decoder_layers(), 5U);
  EXPECT_EQ(pattern->depths(), 2);
  EXPECT_FALSE(hybrid_pattern(Json::object().set("num_layers", 5)));
  EXPECT_EQ(hybrid_pattern(Json::object().set("hybrid_override_pattern", "M*"))->key,
            "hybrid_override_pattern");
}

TEST(HybridPattern, CutsTheSourcesStages) {
  MeshSizes const three{1, 3, 1, 1, 1};
  EXPECT_EQ(stage_sizes(pipeline_spec(args_with("M*|-M|E", 5), three)),
            (std::vector<Index>{2, 2, 1}));
  EXPECT_EQ(stage_sizes(pipeline_spec(args_with("M*||-ME", 5), three)),
            (std::vector<Index>{2, 0, 3}));
  PipelineSpec const depths =
      pipeline_spec(args_with("M*|-M|E/*E", 5).set("mtp_num_layers", 1), three);
  EXPECT_EQ(pipeline_chunks(depths).back().mtp.size(), 1U);
  EXPECT_EQ(stage_sizes(pipeline_spec(args_with("M|*-|M|E", 5), {1, 2, 2, 1, 1})),
            (std::vector<Index>{1, 2, 1, 1}));
}

TEST(HybridPattern, OfAnotherNumberOfStagesDecidesNothing) {
  EXPECT_EQ(stage_sizes(pipeline_spec(args_with("M*|-M|E", 5), {1, 5, 1, 1, 1})),
            (std::vector<Index>{1, 1, 1, 1, 1}));
  EXPECT_EQ(stage_sizes(pipeline_spec(args_with("M*-ME", 5), {1, 1, 1, 1, 1})),
            (std::vector<Index>{5}));
}

TEST(HybridPattern, IsCutForTheTargetsStages) {
  Json const source = args_with("M*|-M|E/*E", 5).set("decoder_first_pipeline_num_layers", 1);
  PipelineSpec pipeline{.ranks = 3, .decoder_layers = 5, .mtp_layers = 1, .first_stage_layers = 1};
  Json const uneven = written(source, {1, 3, 1, 1, 1}, pipeline);
  EXPECT_EQ(*uneven.find("hybrid_layer_pattern")->text(), "M|*-|ME/*E");
  EXPECT_TRUE(uneven.find("decoder_first_pipeline_num_layers")->is_null());
  EXPECT_EQ(stage_sizes(pipeline_spec(uneven, {1, 3, 1, 1, 1})), (std::vector<Index>{1, 2, 2}));
  EXPECT_EQ(*written(source, {}, {.decoder_layers = 5, .mtp_layers = 1})
                 .find("hybrid_layer_pattern")
                 ->text(),
            "M*-ME/*E");
  EXPECT_EQ(*written(source, {1, 5, 1, 1, 1}, {.ranks = 5, .decoder_layers = 5})
                 .find("hybrid_layer_pattern")
                 ->text(),
            "M|*|-|M|E/*E");
}

TEST(HybridPattern, WithoutBoundsStaysAsItIs) {
  for (auto const& [key, value] :
       target_args({{1, 5, 1, 1, 1}, {.ranks = 5, .decoder_layers = 5}, 0}, args_with("M*-ME", 5)))
    EXPECT_NE(key, "hybrid_layer_pattern");
}

TEST(HybridPattern, NamesAnUnknownLetterAndAWrongLength) {
  EXPECT_EQ(refusal(args_with("M*|-M|E/*E", 5)), "");
  EXPECT_EQ(
      refusal(args_with("M*X-E", 5)),
      "here: args.hybrid_layer_pattern = \"M*X-E\": 'X' is not a layer that the map knows; known "
      "letters are M*-E. Correct the letter, or name a map that knows it with RESHARD_MAPS.");
  EXPECT_EQ(
      refusal(args_with("M*-M|E", 6)),
      "here: args.hybrid_layer_pattern = \"M*-M|E\" has 5 decoder layers, and args.num_layers "
      "is 6. The pattern and the files belong to different models: correct args, or choose "
      "another save.");
}

}  // namespace
}  // namespace reshard::megatron
