// Layouts of the parts of quantised weights: the worked examples.
#include "core/layout/part_layout.hpp"

#include <gtest/gtest.h>

#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

using Kind = PartDim::Kind;

PartDim blocks(Index block) { return {Kind::blocks, block, 1}; }
PartDim split(Index block, Index inner) { return {Kind::split, block, inner}; }
PartDim words(Index block, Index count) { return {Kind::words, block, count}; }
PartDim const all{Kind::all, 1, 1};
PartDim const one{Kind::one, 1, 1};

/// 4 groups of 2 heads of `dim`, and the extents of DeepSeek's projections.
Model sizes(Index dim = 128) {
  Model model{{"group", 4},    {"head", 2},     {"dim", dim},     {"hidden", 512},
              {"inter", 2880}, {"wide", 18432}, {"q_rank", 1536}, {"kv_down", 576},
              {"expert", 3},   {"mi", 64},      {"numbers2", 2},  {"numbers3", 3}};
  model.named_sizes = {{"glu", 32}};
  return model;
}

LayoutExpr part_of(Model const& model, std::string_view weight, std::vector<PartDim> const& dims,
                   std::string_view vector = "") {
  return part_layout(
      parse_layout(weight), dims, vector, ".s", [&](std::string const& name) -> Index {
        if (auto const named = model.named_sizes.find(name); named != model.named_sizes.end())
          return named->second;
        return model.axes[model.axis(name)].size;
      });
}

/// Shape and pieces of a part must be those of an expression written by hand.
void expect_part(Model model, std::string_view weight, std::vector<PartDim> const& dims,
                 std::string_view by_hand, std::string_view vector = "") {
  SCOPED_TRACE(weight);
  LayoutExpr const part = part_of(model, weight, dims, vector);
  LayoutExpr const wanted = parse_layout(by_hand);
  EXPECT_EQ(part.tensors(), wanted.tensors());
  Layout const a = evaluate(part, model.scope(), {});
  Layout const b = evaluate(wanted, model.scope(), {});
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(shown(model, a), shown(model, b));
}

std::string refusal(Model const& model, std::string_view weight, std::vector<PartDim> const& dims) {
  return sentence_of([&] { part_of(model, weight, dims); });
}

void expect_straddles(Model const& model, std::string_view weight, std::vector<PartDim> const& dims,
                      std::string const& says) {
  EXPECT_NE(refusal(model, weight, dims).find(says), std::string::npos)
      << weight << ": " << refusal(model, weight, dims);
}

TEST(PartLayout, OfAProductDividesTheLastFactorFirst) {
  expect_part(sizes(128), "q: (group head dim) hidden", {blocks(128), blocks(128)},
              "q.s: (group head dim/128) hidden/128");
  expect_part(sizes(256), "q: (group head dim) hidden", {blocks(128), blocks(128)},
              "q.s: (group head dim/128) hidden/128");
  expect_part(sizes(64), "q: (group head dim) hidden", {blocks(128), blocks(128)},
              "q.s: (group head/2) hidden/128");
  expect_part(sizes(32), "q: (group head dim) hidden", {blocks(128), blocks(128)},
              "q.s: group/2 hidden/128");
  expect_part(sizes(64), "o: hidden (group head dim)", {blocks(128), blocks(128)},
              "o.s: hidden/128 (group head/2)");
  expect_straddles(sizes(96), "q: (group head dim) hidden", {blocks(128), blocks(128)},
                   "blocks of 128 straddle 'dim' (extent 96)");
  expect_straddles(sizes(192), "q: (group head dim) hidden", {blocks(128), blocks(128)},
                   "blocks of 128 straddle 'dim' (extent 192)");
}

TEST(PartLayout, OfAFusedWeightDividesEachTensor) {
  expect_part(sizes(128), "attn: (group (q: head dim | k: dim | v: dim)) hidden",
              {blocks(128), blocks(128)},
              "attn: (group (q.s: head dim/128 | k.s: dim/128 | v.s: dim/128)) hidden/128");
  expect_straddles(sizes(64), "attn: (group (q: head dim | k: dim | v: dim)) hidden",
                   {blocks(128), blocks(128)}, "straddle 'dim' (extent 64)");
  expect_part(sizes(), "ffn: (gate: wide | up: wide) hidden", {blocks(128), blocks(128)},
              "ffn: (gate.s: wide/128 | up.s: wide/128) hidden/128");
  expect_straddles(sizes(), "ffn: (gate: inter | up: inter) hidden", {blocks(128), blocks(128)},
                   "straddle 'inter' (extent 2880)");
}

TEST(PartLayout, OnlyTheLastBlockOfADimensionMayBeShort) {
  Model model = sizes();
  expect_part(model, "mla: (q_down: q_rank | kv_down: kv_down) hidden", {blocks(128), blocks(128)},
              "mla: (q_down.s: q_rank/128 | kv_down.s: kv_down/128) hidden/128");
  EXPECT_EQ(evaluate(part_of(model, "mla: (q_down: q_rank | kv_down: kv_down) hidden",
                             {blocks(128), blocks(128)}),
                     model.scope(), {})
                .shape,
            (std::vector<Index>{17, 4}));
  expect_straddles(model, "mla: (kv_down: kv_down | q_down: q_rank) hidden",
                   {blocks(128), blocks(128)}, "straddle 'kv_down' (extent 576)");
  expect_part(model, "x: inter hidden", {blocks(128), blocks(128)}, "x.s: inter/128 hidden/128");
  expect_straddles(model, "x: (group kv_down) hidden", {blocks(128), blocks(128)},
                   "straddle 'kv_down' (extent 576)");
}

TEST(PartLayout, InterleavedTensorsAreCutAlongWhatTheyShare) {
  expect_part(sizes(), "x: expert (mi (gate: | up:)) hidden", {blocks(1), blocks(32)},
              "x: expert (mi (gate.s: | up.s:)) hidden/32");
  expect_straddles(sizes(), "x: expert (mi (gate: | up:)) hidden", {blocks(2), blocks(1)},
                   "straddle");
  expect_part(sizes(), "x: expert (mi (gate: | up:)) hidden", {blocks(1), split(32, 2)},
              "x: expert (mi (gate.s: | up.s:)) hidden/32 hidden%32/2");
  expect_part(sizes(), "x: expert hidden (mi (gate: | up:))", {blocks(32), blocks(1)},
              "x: expert hidden/32 (mi (gate.s: | up.s:))");
}

TEST(PartLayout, CountsByNameAreNumbersInThePart) {
  expect_part(sizes(), "x: (mi/glu (gate: mi%glu | up: mi%glu)) hidden", {blocks(16), blocks(1)},
              "x: (mi/32 (gate.s: mi%32/16 | up.s: mi%32/16)) hidden");
  expect_straddles(sizes(), "x: (mi/glu (gate: mi%glu | up: mi%glu)) hidden",
                   {blocks(128), blocks(1)}, "straddle");
  // Digits are compared as numbers later: no name may be left in them.
  for (LayoutExpr::Digit const& digit :
       part_of(sizes(), "x: (mi/glu mi%glu) hidden", {blocks(16), blocks(1)}).digits_of("x.s"))
    EXPECT_EQ((digit.mod + digit.div).find("glu"), std::string::npos) << digit.axis;
}

TEST(PartLayout, ATensorThatLiesInABlockKeepsItsName) {
  expect_part(sizes(64), "attn: (group (q: dim)) hidden", {blocks(128), blocks(128)},
              "attn: (group/2 (q.s:)) hidden/128");
  expect_straddles(sizes(64), "attn: (group ((q: dim | k: dim))) hidden",
                   {blocks(256), blocks(128)}, "straddle");
}

TEST(PartLayout, WhereADimensionGoesTensorsStay) {
  expect_part(sizes(), "attn: (group (q: head dim | k: dim | v: dim)) hidden", {all, all},
              "attn: (q.s: | k.s: | v.s:)");
  expect_part(sizes(), "attn: (group (q: head dim | k: dim | v: dim)) hidden", {all, one},
              "attn: (q.s: | k.s: | v.s:) 1");
  expect_part(sizes(), "attn: (group (q: head dim | k: dim | v: dim)) hidden", {one, all},
              "attn: (q.s: | k.s: | v.s:)");
  expect_part(sizes(), "q: (group head dim) hidden", {all, all}, "q.s:");
  expect_part(sizes(), "q: (group head dim) hidden", {all, one}, "q.s: 1");
  expect_part(sizes(), "q: (group head dim) hidden", {blocks(1), one}, "q.s: (group head dim) 1");
  expect_part(sizes(), "q: (group head dim) hidden", {blocks(1), all}, "q.s: (group head dim)");
  expect_part(sizes(), "q: (group head dim) hidden", {all, blocks(1)}, "q.s: hidden");
  expect_part(sizes(), "x: expert (mi (gate: | up:)) hidden", {all, all},
              "x: expert (gate.s: | up.s:)");
  expect_part(sizes(), "ffn: (gate: inter | fill(5)) hidden", {all, all}, "ffn: (gate.s:)");
}

TEST(PartLayout, AVectorStandsBehindAll) {
  expect_part(sizes(), "q: (group head dim) hidden", {all, all}, "q.s: numbers2", "numbers2");
  expect_part(sizes(), "ffn: (gate: wide | up: wide) hidden", {all, all},
              "ffn: (gate.s: | up.s:) numbers2", "numbers2");
}

TEST(PartLayout, SplitNeedsWholeBlocksOfOneAxis) {
  expect_part(sizes(64), "o: hidden (group head dim)", {blocks(1), split(32, 2)},
              "o.s: hidden (group head dim/32) dim%32/2");
  expect_straddles(sizes(48), "o: hidden (group head dim)", {blocks(1), split(32, 2)},
                   "blocks of 32 straddle 'dim' (extent 48)");
  expect_part(sizes(), "o: hidden (a: mi | b: mi)", {split(32, 32), split(16, 16)},
              "o: hidden/32 1 (a.s: mi/16 | b.s: mi/16) 1");
  expect_straddles(sizes(), "o: hidden (a: mi | b: mi)", {blocks(1), split(32, 2)},
                   "straddle several tensors");
  expect_straddles(sizes(), "o: hidden (mi/32 mi%32)", {blocks(1), split(32, 2)}, "straddle");
}

TEST(PartLayout, WordsOfABlockAreAnAxisOfTheirOwn) {
  expect_part(sizes(64), "o: hidden (group head dim)", {blocks(1), words(32, 3)},
              "o.s: hidden (group head dim/32 numbers3)");
  expect_part(sizes(), "ffn: (gate: wide | up: wide) hidden", {words(32, 3), blocks(1)},
              "ffn: ((gate.s: wide/32 | up.s: wide/32) numbers3) hidden");
  expect_straddles(sizes(48), "attn: (group (q: head dim | k: dim)) hidden",
                   {words(32, 3), blocks(1)}, "blocks of 32 straddle 'dim' (extent 144)");
  EXPECT_EQ(refusal(sizes(36), "v: dim hidden", {words(32, 3), blocks(1)}),
            "'v: dim hidden': 32 codes are 3 words of 32 bits, and 36 codes of 'dim' end within "
            "them");
}

TEST(PartLayout, DimensionsBeforeTheLastStayAsTheyAre) {
  expect_part(sizes(), "x: expert group wide hidden", {blocks(128), blocks(128)},
              "x.s: expert group wide/128 hidden/128");
  EXPECT_NE(
      refusal(sizes(), "norm: hidden", {blocks(1), blocks(2)})
          .find("has 1 dimensions, and the form of its quantised values counts the last 2 of them"),
      std::string::npos);
}

TEST(PartLayout, PaddingIsCutIntoBlocksToo) {
  expect_part(sizes(), "x: (a: mi | fill(64)) hidden", {blocks(32), blocks(1)},
              "x: (a.s: mi/32 | fill(2)) hidden");
  expect_part(sizes(), "x: (a: mi | fill(5)) hidden", {blocks(32), blocks(1)},
              "x: (a.s: mi/32 | fill(1)) hidden");
  expect_straddles(sizes(), "x: (fill(5) | a: mi) hidden", {blocks(32), blocks(1)}, "straddle");
}

/// The cuts of block scales that the ranks of a mesh may make, as the share of the part's digits
/// says it.
TEST(PartLayout, SharesMustBeWholeBlocks) {
  struct Case {
    Index size;
    Index block;
    std::vector<Index> legal;
    std::vector<Index> illegal;
  };
  for (Case const& item :
       {Case{18432, 128, {8, 16}, {32}}, Case{2048, 128, {16}, {32}}, Case{3072, 128, {8}, {16}},
        Case{24576, 128, {64}, {128}}, Case{2880, 32, {1, 2, 3, 5, 6, 9, 10}, {4, 8, 12}}}) {
    Model model{{"inter", item.size}, {"hidden", 128}};
    LayoutExpr const part =
        part_of(model, "x: inter hidden", {blocks(item.block), blocks(item.block)});
    auto const second_rank = [&](Index ranks) {
      Index const share = item.size / ranks;
      return evaluate(
                 part, model.scope(),
                 shares(model, {{"inter",
                                 {{ranks > 1 ? share : 0, ranks > 1 ? 2 * share : share, false}}}}))
          .shape[0];
    };
    for (Index const ranks : item.legal)
      EXPECT_EQ(second_rank(ranks), item.size / item.block / ranks)
          << item.size << " over " << ranks;
    for (Index const ranks : item.illegal)
      EXPECT_NE(sentence_of([&] { second_rank(ranks); }), "") << item.size << " over " << ranks;
  }
}

/// Of each layout its tensor, a colon and its shape.
std::vector<std::string> shared(std::string_view weight, std::vector<PartDim> const& dims) {
  Model const model = sizes();
  std::vector<std::string> result;
  for (LayoutExpr const& part : shared_part_layouts(
           parse_layout(weight), dims, "", ".s",
           [&](std::string const& name) { return model.axes[model.axis(name)].size; })) {
    Model scope = model;
    result.push_back(fmt::format("{}: {}", fmt::join(part.tensors(), " "),
                                 fmt::join(evaluate(part, scope.scope(), {}).shape, " ")));
  }
  return result;
}

TEST(PartLayout, WhatAllTensorsHaveTogetherIsOneLayoutForEach) {
  std::string const qkv = "attn: (group (q: head dim | k: dim)) hidden";
  using List = std::vector<std::string>;
  EXPECT_EQ(shared(qkv, {all, all}), (List{"attn.q.s: ", "attn.k.s: "}));
  EXPECT_EQ(shared(qkv, {all, one}), (List{"attn.q.s: 1", "attn.k.s: 1"}));
  EXPECT_EQ(shared(qkv, {all, blocks(1)}), (List{"attn.q.s: 512", "attn.k.s: 512"}));
  EXPECT_EQ(shared(qkv, {blocks(1), one}), (List{"attn.q.s attn.k.s: 1536 1"}));
  EXPECT_EQ(shared("o: hidden (group head)", {all, all}), (List{"o.s: "}));
}

}  // namespace
}  // namespace reshard::test
