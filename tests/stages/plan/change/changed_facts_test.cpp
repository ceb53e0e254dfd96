#include "stages/plan/change/changed_facts.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace reshard {
namespace {

using Lines = std::vector<std::string>;

/// "num_hidden_layers = 2", in the order of the facts.
Lines changed(char const* facts, FactChanges const& changes, std::string_view inner = "") {
  Lines lines;
  for (huggingface::ConfigPatch const& patch :
       changed_facts(parse_json(facts, "facts"), inner, changes, "config.json"))
    lines.push_back(fmt::format("{} = {}", fmt::join(patch.path, "."), patch.value->dump()));
  return lines;
}

std::string refused(char const* facts, FactChanges const& changes) {
  try {
    (void)changed_facts(parse_json(facts, "facts"), "", changes, "config.json");
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.sentence();
  }
  return {};
}

FactChanges layers(std::vector<Index> kept) {
  FactChanges changes;
  changes.layers = 4;
  changes.kept_layers = std::move(kept);
  return changes;
}

TEST(ChangedFacts, NumbersAndListsOfLayers) {
  EXPECT_EQ(changed(R"({"num_hidden_layers": 4, "layer_types": ["a", "b", "c", "d"],
                        "first_k_dense_replace": 2, "mlp_only_layers": [1, 3], "hidden_size": 4})",
                    layers({0, 3})),
            (Lines{"num_hidden_layers = 2", R"(layer_types = ["a", "d"])",
                   "first_k_dense_replace = 1", "mlp_only_layers = [1]"}));
  EXPECT_EQ(changed(R"({"linear_attn_config": {"kda_layers": [1, 2, 4], "full_attn_layers": [3]}})",
                    layers({1, 2})),
            Lines{R"(linear_attn_config = {"kda_layers": [1], "full_attn_layers": [2]})"});
  EXPECT_EQ(changed(R"({"per_layer_config": {"1": {"x": 8}, "3": {"x": 9}}, "other": {"a": 1}})",
                    layers({0, 3})),
            Lines{R"(per_layer_config = {"1": {"x": 9}})"});
}

TEST(ChangedFacts, ListsOfOtherThings) {
  EXPECT_EQ(changed(R"({"architectures": ["a", "b", "c", "d"], "eos_token_id": [1, 2, 3, 4],
                        "ssm_multipliers": [1, 2, 3, 4]})",
                    layers({0})),
            Lines());
}

TEST(ChangedFacts, PatternsOfLetters) {
  EXPECT_EQ(
      changed(R"({"hybrid_override_pattern": "M-*E", "mtp_layer_pattern": "*E"})", layers({0, 2})),
      Lines{R"(hybrid_override_pattern = "M*")"});
  EXPECT_EQ(changed(R"({"hybrid_layer_pattern": "M-|*E/ME"})", layers({0, 3})),
            Lines{R"(hybrid_layer_pattern = "ME/ME")"});
}

TEST(ChangedFacts, ObjectsInside) {
  EXPECT_EQ(changed(R"({"text_config": {"num_hidden_layers": 4}, "vision": {"num_layers": 4},
                        "llm": {"inner": {"n_layer": 4}}})",
                    layers({0}), "llm.inner"),
            (Lines{"llm.inner.n_layer = 1", "text_config.num_hidden_layers = 1"}));
}

TEST(ChangedFacts, IntervalsStayInFrontOnly) {
  char const* const facts = R"({"full_attention_interval": 2})";
  EXPECT_EQ(changed(facts, layers({0, 1})), Lines());
  EXPECT_NE(refused(facts, layers({1, 2})).find("full_attention_interval = 2, and no list says"),
            std::string::npos);
  EXPECT_EQ(
      refused(R"({"full_attention_interval": 2, "layer_types": [1, 2, 3, 4]})", layers({1, 2})),
      "");
  EXPECT_NE(refused(R"({"num_kv_shared_layers": 2})", layers({0, 1})).find("take keys and values"),
            std::string::npos);
}

TEST(ChangedFacts, Depths) {
  FactChanges changes;
  changes.layers = 2;
  changes.depth_layers = 1;
  changes.drop_depths = true;
  EXPECT_EQ(changed(R"({"num_nextn_predict_layers": 1, "moe_layer_freq": [0, 1, 1]})", changes),
            (Lines{"num_nextn_predict_layers = 0", "moe_layer_freq = [0, 1]"}));
}

TEST(ChangedFacts, Experts) {
  FactChanges changes;
  changes.experts = 8;
  changes.kept_experts = {{}, {0, 1, 4, 5}};
  changes.kept_expert_count = 4;
  EXPECT_EQ(changed(R"({"n_routed_experts": 8, "n_group": 2, "num_experts_per_tok": 4})", changes),
            Lines{"n_routed_experts = 4"});
  EXPECT_NE(refused(R"({"n_group": 4})", changes).find("keep 0 of its 2 experts and another 2"),
            std::string::npos);
  EXPECT_NE(refused(R"({"moe_topk": 5})", changes).find("4 are kept, and config.json has moe_topk"),
            std::string::npos);
}

TEST(ChangedFacts, Vocabulary) {
  FactChanges changes;
  changes.vocab = 10;
  EXPECT_EQ(
      changed(R"({"vocab_size": 20, "eos_token_id": [1, 9], "image_token_index": 3})", changes),
      Lines{"vocab_size = 10"});
  EXPECT_NE(refused(R"({"pad_token_id": 10})", changes).find("has pad_token_id = 10, a row"),
            std::string::npos);
  EXPECT_NE(refused(R"({"eos_token_id": [1, 12]})", changes).find("Keep at least 13 rows"),
            std::string::npos);
}

}  // namespace
}  // namespace reshard
