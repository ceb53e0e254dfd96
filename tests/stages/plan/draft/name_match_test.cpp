#include "stages/plan/draft/name_match.hpp"

#include <gtest/gtest.h>

#include "stages/plan/draft/fact_words.hpp"
#include "stages/plan/draft/layout_text.hpp"

namespace reshard {
namespace {

using Texts = std::vector<std::string>;

std::vector<NameMacro> const macros{
    {"model", "model."}, {"l", "{model}layers.{layer}."}, {"mlp", "{l}mlp."}};

ExpectedGroup expected(std::string key, std::string is, std::vector<Index> shape) {
  std::string text = key;
  for (auto const& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"{mlp}", "model.layers.#.mlp."}, {"{l}", "model.layers.#."}, {"{model}", "model."}})
    if (text.starts_with(from)) text = to + text.substr(from.size());
  return {std::move(key), std::move(is), std::move(text), std::move(shape)};
}

std::vector<ExpectedGroup> const model{
    expected("{model}embed_tokens.weight", "embed: vocab hidden", {96, 64}),
    expected("{l}input_layernorm.weight", "attn.norm: hidden", {64}),
    expected("{l}self_attn.q_proj.weight", "attn.q: (group head dim) hidden", {64, 64}),
    expected("{l}self_attn.k_proj.weight", "attn.k: (group dim) hidden", {32, 64}),
    expected("{l}self_attn.v_proj.weight", "attn.v: (group dim) hidden", {32, 64}),
    expected("{mlp}gate_proj.weight", "ffn.gate: inter hidden", {90, 64}),
    expected("{mlp}up_proj.weight", "ffn.up: inter hidden", {90, 64}),
    expected("{model}norm.weight", "final_norm: hidden", {64})};

/// The model's own names, each changed by `rename`.
template <class Rename>
std::vector<NameGroup> found_as(Rename&& rename) {
  std::vector<NameGroup> groups;
  for (ExpectedGroup const& each : model) {
    std::string const text = rename(each.text);
    if (!text.empty()) groups.push_back({text, 3, each.shape});
  }
  return groups;
}

std::string replaced(std::string text, std::string const& from, std::string const& to) {
  std::size_t const at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(GroupNames, CountsNamesThatDifferInNumbersAndKeepsAShapeThatAllHave) {
  std::vector<DraftTensor> const tensors{
      {"h.0.w1", {{2, 3}}}, {"h.1.w1", {{2, 3}}}, {"h.0.w2", {{4}}}, {"h.1.w2", {{5}}}, {"n", {}}};
  auto const groups = group_names(tensors);
  ASSERT_EQ(groups.size(), 3);
  EXPECT_EQ(groups[0].text, "h.#.w1");
  EXPECT_EQ(groups[0].count, 2);
  EXPECT_EQ(groups[0].shape, (std::vector<Index>{2, 3}));
  EXPECT_EQ(groups[1].shape, std::nullopt);
  EXPECT_EQ(counted_layers(tensors), 2);
}

TEST(NameMatch, NamesThatFitNeedNoChange) {
  auto const found = found_as([](std::string const& text) { return text; });
  NameMatch const match = match_names(model, macros, found);
  EXPECT_EQ(match.equal, model.size());
  EXPECT_TRUE(match.macros.empty());
  EXPECT_TRUE(match.changes.empty());
  EXPECT_TRUE(match.absent.empty());
  EXPECT_TRUE(match.left.empty());
}

TEST(NameMatch, OtherPrefixesAreOtherMacros) {
  auto const found = found_as([](std::string const& text) {
    return replaced(replaced(text, "model.layers.#.", "transformer.blocks.#."), "model.",
                    "transformer.");
  });
  NameMatch const match = match_names(model, macros, found);
  EXPECT_EQ(match.equal, model.size());
  EXPECT_EQ(match.macros, (std::vector<NameMacro>{{"l", "transformer.blocks.{layer}."},
                                                  {"model", "transformer."}}));
  EXPECT_TRUE(match.changes.empty());
}

TEST(NameMatch, WeightsInOneTensorAreFoundByTheirRows) {
  auto found = found_as([](std::string const& text) {
    return text.find("gate_proj") != std::string::npos || text.find("up_proj") != std::string::npos
               ? std::string()
               : text;
  });
  found.push_back({"model.layers.#.mlp.w13.weight", 3, std::vector<Index>{180, 64}});
  NameMatch const match = match_names(model, macros, found);
  ASSERT_EQ(match.changes.size(), 1);
  EXPECT_EQ(match.changes[0].key, "{mlp}w13.weight");
  EXPECT_EQ(match.changes[0].is, "ffn: (gate: inter | up: inter) hidden");
  EXPECT_EQ(match.changes[0].replaced, (Texts{"{mlp}gate_proj.weight", "{mlp}up_proj.weight"}));
  EXPECT_TRUE(match.left.empty());
}

TEST(NameMatch, WithoutShapesWeightsInOneTensorAreFoundByItsWords) {
  auto found = found_as([](std::string const& text) {
    return text.find("self_attn") != std::string::npos ? std::string() : text;
  });
  for (NameGroup& group : found) group.shape.reset();
  found.push_back({"model.layers.#.self_attn.qkv_proj.weight", 3, std::nullopt});
  NameMatch const match = match_names(model, macros, found);
  ASSERT_EQ(match.changes.size(), 1);
  EXPECT_EQ(match.changes[0].is, "attn: (q: group head dim | k: group dim | v: group dim) hidden");
}

TEST(NameMatch, AnotherNameIsFoundByItsShapeOrItsWords) {
  auto const found = found_as([](std::string const& text) {
    return replaced(replaced(text, "embed_tokens", "wte"), "input_layernorm",
                    "attention_layernorm");
  });
  NameMatch const match = match_names(model, macros, found);
  ASSERT_EQ(match.changes.size(), 2);
  for (NameChange const& change : match.changes)
    EXPECT_EQ(change.key, change.is == "attn.norm: hidden" ? "{l}attention_layernorm.weight"
                                                           : "{model}wte.weight");
}

TEST(NameMatch, WhatFitsNothingIsLeft) {
  auto found = found_as(
      [](std::string const& text) { return text == "model.norm.weight" ? std::string() : text; });
  found.push_back({"model.layers.#.self_attn.rope.cos", 3, std::vector<Index>{16, 4}});
  NameMatch const match = match_names(model, macros, found);
  EXPECT_EQ(match.absent, (Texts{"{model}norm.weight"}));
  ASSERT_EQ(match.left.size(), 1);
  EXPECT_EQ(found[match.left[0]].text, "model.layers.#.self_attn.rope.cos");
}

TEST(NameMatch, AnotherShapeUnderTheExpectedNameIsSaid) {
  auto found = found_as([](std::string const& text) { return text; });
  found[3].shape = std::vector<Index>{16, 64};
  NameMatch const match = match_names(model, macros, found);
  EXPECT_EQ(match.reshaped,
            (Texts{"model.layers.#.self_attn.k_proj.weight is [16, 64], expected [32, 64]"}));
}

TEST(JoinedLayout, TakesRowsOfOneModuleAlone) {
  EXPECT_EQ(joined_layout(Texts{"attn.q_bias: (group head dim)", "attn.k_bias: (group dim)"}),
            "attn: (q_bias: group head dim | k_bias: group dim)");
  EXPECT_EQ(joined_layout(Texts{"attn.q: (group head dim) hidden", "ffn.up: inter hidden"}),
            std::nullopt);
  EXPECT_EQ(
      joined_layout(Texts{"attn.q: (group head dim) hidden", "attn.o: hidden (group head dim)"}),
      std::nullopt);
  EXPECT_EQ(joined_layout(Texts{"embed: vocab hidden", "lm_head: vocab hidden"}), std::nullopt);
}

TEST(OtherWords, AreThoseOfTheConfigForFactsThatItDoesNotState) {
  Json const facts = parse_json(
      R"({"n_layer": 3, "hidden_size": 64, "n_head": 4, "num_experts": 8, "n_experts": 9})", "t");
  auto const words = other_words(
      {"num_hidden_layers", "hidden_size", "num_attention_heads", "num_experts"}, facts, 0);
  ASSERT_EQ(words.size(), 2);
  EXPECT_EQ(words[0].word, "n_layer");
  EXPECT_EQ(words[1].word, "n_head");
  EXPECT_EQ(
      with_other_words("num_hidden_layers + 'num_hidden_layers' * x.num_hidden_layers", words),
      "n_layer + 'num_hidden_layers' * x.num_hidden_layers");
}

TEST(OtherWords, LayersAreAlsoFoundByTheirNumber) {
  Json const facts = parse_json(R"({"hidden": 64, "depth": 3})", "t");
  auto const words = other_words({"num_hidden_layers"}, facts, 3);
  ASSERT_EQ(words.size(), 1);
  EXPECT_EQ(words[0].word, "depth");
  EXPECT_TRUE(other_words({"num_hidden_layers"}, facts, 0).empty());
}

}  // namespace
}  // namespace reshard
