#include "core/formats/huggingface/config/lora_config.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace reshard::huggingface {
namespace {

/// A plain adapter with other members.
LoraConfig config(std::string const& more, LoraUse use = LoraUse::merge) {
  Json all = parse_json(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 12, "bias": "none"})", "x");
  Json const others = parse_json(R"({"version": 1)" + more + "}", "x");
  for (auto const& [key, value] : *others.members()) all.set(key, value);
  return {all, "adapter_config.json", use};
}

std::string refusal(std::function<void()> const& work) {
  try {
    work();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    return error.sentence();
  }
  return "";
}

std::string refusal(std::string const& more, LoraUse use = LoraUse::merge) {
  return refusal([&] { config(more, use); });
}

TEST(LoraConfig, ScalesByAlphaAndRank) {
  EXPECT_EQ(config("").scale("model.layers.0.q_proj", 8), 1.5F);
  EXPECT_EQ(config(R"(, "use_rslora": true)").scale("q", 8),
            static_cast<float>(12 / std::sqrt(8.0)));
  EXPECT_EQ(config(R"(, "use_rslora": false, "lora_alpha2": 1)").scale("q", 5),
            static_cast<float>(12.0 / 5));
}

TEST(LoraConfig, TakesTheFirstPatternThatFitsTheEndOfAName) {
  LoraConfig const one = config(
      R"(, "rank_pattern": {"layers.1.mlp.up_proj": 4, "[kv]_proj": 2}, "alpha_pattern": {"v_proj": 5, "^model.head": 7})");
  EXPECT_EQ(one.rank("model.layers.1.mlp.up_proj"), 4);
  EXPECT_EQ(one.rank("model.layers.11.mlp.up_proj"), 8);
  EXPECT_EQ(one.rank("model.layers.0.k_proj"), 2);
  EXPECT_EQ(one.rank("model.layers.0.xk_proj"), 8) << "words are whole";
  EXPECT_EQ(one.scale("model.layers.0.v_proj", 2), 2.5F);
  EXPECT_EQ(one.scale("model.head", 7), 1.0F);
}

TEST(LoraConfig, RefusesWhatIsMoreThanAProduct) {
  EXPECT_NE(refusal(R"(, "use_dora": true)", LoraUse::carry).find("DoRA"), std::string::npos);
  EXPECT_TRUE(config(R"(, "use_dora": true)").normalised());
  EXPECT_FALSE(config(R"(, "use_dora": false)").normalised());
  EXPECT_NE(refusal(R"(, "modules_to_save": ["lm_head"])").find("lm_head"), std::string::npos);
  EXPECT_NE(refusal(R"(, "init_lora_weights": "pissa")").find("pissa"), std::string::npos);
  EXPECT_NE(refusal(R"(, "kasa_config": {"a": 1})").find("KaSA"), std::string::npos);
  EXPECT_EQ(refusal(R"(, "use_dora": false, "modules_to_save": null, "loftq_config": {})"), "");
  EXPECT_EQ(refusal(R"(, "init_lora_weights": "gaussian")"), "");
  for (LoraUse const use : {LoraUse::merge, LoraUse::carry}) {
    EXPECT_THROW(LoraConfig(parse_json(R"({"peft_type": "LOHA"})", "x"), "x", use), Error);
    EXPECT_THROW(LoraConfig(parse_json("{}", "x"), "x", use), Error);
    EXPECT_NE(refusal(R"(, "bias": "all")", use).find("bias = \"all\""), std::string::npos);
  }
  EXPECT_THROW(config(R"(, "rank_pattern": {"(": 3})").rank("q"), Error);
  for (char const* slow :
       {"(a|a)*(a|a)*z", "(x+x+)+y", "(.*)*z", ".*.*.*.*z", "(a)\\\\1", "(?=a)a"})
    EXPECT_THROW(config(fmt::format(R"(, "rank_pattern": {{"{}": 3}})", slow))
                     .rank("a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a"),
                 Error)
        << slow;
  for (char const* wrong :
       {R"("use_rslora": "false")", R"("rank_pattern": ["q"])", R"("alpha_pattern": 3)",
        R"("fan_in_fan_out": 1)", R"("use_newest": true)"})
    EXPECT_THROW(config(fmt::format(", {}", wrong)), Error) << wrong;
  EXPECT_NO_THROW(config(R"(, "use_newest": false, "use_rslora": null)"));
}

TEST(LoraConfig, CarriesInitialisationsWithAWarning) {
  EXPECT_TRUE(config("", LoraUse::carry).warnings().empty());
  auto const warnings = config(R"(, "init_lora_weights": "pissa")", LoraUse::carry).warnings();
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings.front().find("adapter_config.json: init_lora_weights = \"pissa\""),
            std::string::npos);
}

TEST(LoraConfig, ChecksRanksAndScales) {
  EXPECT_NO_THROW(config(R"(, "rank_pattern": {"q": 5})").check("m.q", 5));
  auto const says = [](std::string const& more, std::string_view module, Index rank) {
    return refusal([&] { config(more).check(module, rank); });
  };
  EXPECT_NE(says("", "m.q", 4).find("states rank 8 for 'm.q', and the tensors have rank 4"),
            std::string::npos);
  EXPECT_NE(says(R"(, "r": 0)", "m.q", 8), "");
  EXPECT_NE(says(R"(, "r": null)", "m.q", 8).find("is null, expected a whole number"),
            std::string::npos);
  EXPECT_NE(says(R"(, "alpha_pattern": {"q": null})", "m.q", 8).find("the alpha_pattern of 'm.q'"),
            std::string::npos);
  EXPECT_NE(says(R"(, "alpha_pattern": {"q": 1e308})", "m.q", 8).find("not a finite 32-bit number"),
            std::string::npos);
  EXPECT_EQ(says(R"(, "alpha_pattern": {"q": 2.7e39})", "m.q", 8), "") << "over 8 it is finite";
  EXPECT_EQ(says(R"(, "alpha_pattern": {"q": -4})", "m.q", 8), "");
}

TEST(LoraConfig, IsUniformWithoutPatterns) {
  EXPECT_TRUE(config(R"(, "rank_pattern": {}, "alpha_pattern": null)").uniform());
  EXPECT_FALSE(config(R"(, "rank_pattern": {"q": 4})").uniform());
  EXPECT_FALSE(config(R"(, "alpha_pattern": {"q": 4})").uniform());
}

TEST(LoraConfig, TheAlphaOfAJobIsAFiniteNumber) {
  EXPECT_EQ(stated_alpha("16", Json(12), ""), Json(16));
  EXPECT_EQ(stated_alpha("0.5", {}, ""), Json(0.5));
  EXPECT_EQ(stated_alpha("", Json(12), ""), Json(12));
  EXPECT_THROW(stated_alpha("", Json("12"), "Set it."), Error);
  for (char const* text : {"", "x", "true", "1e39", "nan"})
    EXPECT_THROW(stated_alpha(text, {}, "Set it."), Error) << text;
}

}  // namespace
}  // namespace reshard::huggingface
