#include "core/formats/huggingface/lora_config.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace reshard::huggingface {
namespace {

LoraConfig config(std::string const& more) {
  return {
      parse_json(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 12, "bias": "none")" + more + "}",
                 "adapter_config.json"),
      "adapter_config.json"};
}

std::string refusal(std::string const& more) {
  try {
    config(more);
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    return error.sentence();
  }
  return "";
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
  EXPECT_NE(refusal(R"(, "use_dora": true)").find("DoRA"), std::string::npos);
  EXPECT_NE(refusal(R"(, "modules_to_save": ["lm_head"])").find("lm_head"), std::string::npos);
  EXPECT_NE(refusal(R"(, "init_lora_weights": "pissa")").find("pissa"), std::string::npos);
  EXPECT_NE(refusal(R"(, "kasa_config": {"a": 1})").find("KaSA"), std::string::npos);
  EXPECT_EQ(refusal(R"(, "use_dora": false, "modules_to_save": null, "loftq_config": {})"), "");
  EXPECT_EQ(refusal(R"(, "init_lora_weights": "gaussian")"), "");
  EXPECT_THROW(LoraConfig(parse_json(R"({"peft_type": "LOHA"})", "x"), "x"), Error);
  EXPECT_THROW(config(R"(, "rank_pattern": {"(": 3})").rank("q"), Error);
}

}  // namespace
}  // namespace reshard::huggingface
