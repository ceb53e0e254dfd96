#include "stages/plan/adapter/adapter_terms.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/sample_models.hpp"

namespace reshard::test {
namespace {

struct Terms {
  Terms(std::string const& more, bool with_family)
      : family(map_file("qwen3_moe")),
        core(map_file("mcore")),
        config(parse_json(R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8)" + more + "}", "x"),
               "adapter_config.json", huggingface::LoraUse::merge) {
    for (SampleModel& sample : sample_models())
      if (sample.family == "qwen3_moe" && !model)
        model.emplace(family, core, ModelFacts{sample.config, "config.json", 0});
    terms.emplace(config, *model, with_family ? &family : nullptr);
  }

  AxisId axis(char const* name) const { return static_cast<AxisId>(model->axes().find(name)); }
  MatrixTerms of(char const* weight, MatrixPlace const& place, Index rank = 4) const {
    return terms->of(*model->find_tensor(weight), place, rank);
  }

  MapFile family, core;
  huggingface::LoraConfig config;
  std::optional<Model> model;
  std::optional<AdapterTerms> terms;
};

TEST(AdapterTerms, PatternsMeanModulesOfTheFamilyByLayerAndExpert) {
  Terms const one(
      R"(, "alpha_pattern": {"layers.1.self_attn.q_proj": 2, "experts.2.up_proj": 1},
           "rank_pattern": {"k_proj": 16})",
      true);
  AxisId const layer = one.axis("layer");
  EXPECT_EQ(one.of("attn.q", {{layer, 0}}).scale, 2);
  EXPECT_EQ(one.of("attn.q", {{layer, 0}}).module, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(one.of("attn.q", {{layer, 1}}).scale, 0.5F);
  EXPECT_EQ(one.of("attn.k", {{layer, 1}}, 16).scale, 0.5F);
  EXPECT_THROW(one.of("attn.k", {{layer, 1}}), Error) << "of another rank";
  MatrixPlace const third{{layer, 0}, {one.axis("expert"), 2}};
  EXPECT_EQ(one.of("experts.up", third).scale, 0.25F);
  EXPECT_EQ(one.of("experts.gate", third).scale, 2);
}

TEST(AdapterTerms, ParametersAreNamedInFull) {
  Terms const one(
      R"(, "target_parameters": ["mlp.experts.down_proj"], "alpha_pattern": {"down_proj": 2})",
      true);
  MatrixPlace const place{{one.axis("layer"), 1}, {one.axis("expert"), 2}};
  EXPECT_EQ(one.of("experts.down", place).module, "model.layers.1.mlp.experts.down_proj");
  EXPECT_EQ(one.of("experts.down", place).scale, 0.5F);
}

TEST(AdapterTerms, WithoutAFamilyNoPatternCanBeFollowed) {
  Terms const plain("", false);
  EXPECT_EQ(plain.of("attn.q", {{plain.axis("layer"), 0}}, 16).scale, 0.5F);
  Terms const one(R"(, "alpha_pattern": {"q_proj": 2})", false);
  try {
    one.of("attn.q", {{one.axis("layer"), 0}});
    FAIL() << "nothing was refused";
  } catch (Error const& error) {
    EXPECT_NE(error.sentence().find("model.map"), std::string::npos);
  }
}

}  // namespace
}  // namespace reshard::test
