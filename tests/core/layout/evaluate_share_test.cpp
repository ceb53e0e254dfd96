// Shares: splits, padding, reordered runs, blocks, and what is refused.
#include <gtest/gtest.h>

#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

using Lines = std::vector<std::string>;
using Shape = std::vector<Index>;

TEST(EvaluateShare, GateAndUpHalves) {
  Model model{{"inter", 8}, {"hidden", 2}};
  Layout const layout =
      model.layout("ffn: (gate: inter | up: inter) hidden", shares(model, {{"inter", {{4, 8}}}}));
  EXPECT_EQ(layout.shape, (Shape{8, 2}));
  EXPECT_EQ(shown(model, layout), (Lines{"ffn.gate @0 inter 4+4*2, hidden 0+2*1",
                                         "ffn.up @8 inter 4+4*2, hidden 0+2*1"}));
}

TEST(EvaluateShare, InterleavedBlocks) {
  Model model{{"inter", 8}, {"hidden", 2}};
  Layout const layout = model.layout("ffn: (inter/2 (gate: inter%2 | up: inter%2)) hidden",
                                     shares(model, {{"inter", {{4, 8}}}}));
  EXPECT_EQ(shown(model, layout), (Lines{"ffn.gate @0 inter/2 2+2*8, inter%2 0+2*2, hidden 0+2*1",
                                         "ffn.up @4 inter/2 2+2*8, inter%2 0+2*2, hidden 0+2*1"}));
}

TEST(EvaluateShare, NamedBlockCountOfOneIsAlwaysLegal) {
  Model model{{"inter", 8}, {"hidden", 2}};
  model.named_sizes["glu"] = 1;
  Layout const layout = model.layout("ffn: (inter/glu (gate: inter%glu | up: inter%glu)) hidden",
                                     shares(model, {{"inter", {{3, 6}}}}));
  EXPECT_EQ(shown(model, layout), (Lines{"ffn.gate @0 inter 3+3*4, inter%1 0+1*2, hidden 0+2*1",
                                         "ffn.up @2 inter 3+3*4, inter%1 0+1*2, hidden 0+2*1"}));
}

TEST(EvaluateShare, PaddedVocabulary) {
  Model model{{"vocab", 10}, {"hidden", 3}};
  Layout const second =
      model.layout("embed: vocab hidden", shares(model, {{"vocab", {{8, 10}, {0, 6, true}}}}));
  EXPECT_EQ(second.shape, (Shape{8, 3}));
  EXPECT_EQ(shown(model, second),
            (Lines{"embed @0 vocab 8+2*3, hidden 0+3*1", "fill @6 (6,3)(3,1)"}));
  Layout const last =
      model.layout("embed: vocab hidden", shares(model, {{"vocab", {{10, 10}, {0, 4, true}}}}));
  EXPECT_EQ(shown(model, last), Lines{"fill @0 (4,3)(3,1)"});
}

TEST(EvaluateShare, ReorderedExpertsArePiecesInStoredOrder) {
  Model model{{"expert", 6}, {"mi", 2}};
  Shares const ids = shares(model, {{"expert", {{5, 6}, {2, 3}}}});
  EXPECT_EQ(shown(model, model.layout("g: expert mi", ids)),
            (Lines{"g @0 expert 5+1*2, mi 0+2*1", "g @2 expert 2+1*2, mi 0+2*1"}));
}

TEST(EvaluateShare, RunsThatContinueEachOtherAreOnePiece) {
  Model model{{"expert", 6}};
  EXPECT_EQ(shown(model,
                  model.layout("g: expert", shares(model, {{"expert", {{2, 3}, {3, 3}, {3, 5}}}}))),
            Lines{"g @0 expert 2+3*1"});
}

TEST(EvaluateShare, EverySecondExpert) {
  Model model{{"expert", 6}, {"mi", 2}};
  EXPECT_EQ(shown(model, model.layout("g: (expert/2 mi)")), Lines{"g @0 expert/2 0+3*2, mi 0+2*1"});
}

TEST(EvaluateShare, EmptyShareHoldsNothing) {
  Model model{{"a", 4}, {"b", 3}};
  Layout const layout = model.layout("x: a b", shares(model, {{"a", {}}}));
  EXPECT_EQ(layout.shape, (Shape{0, 3}));
  EXPECT_TRUE(layout.pieces.empty());
  EXPECT_TRUE(layout.fills.empty());
}

TEST(EvaluateShare, UnevenSplitsAreAsLongAsTheyAre) {
  Model model{{"a", 7}};
  EXPECT_EQ(shown(model, model.layout("x: a", shares(model, {{"a", {{5, 7}}}}))),
            Lines{"x @0 a 5+2*1"});
}

TEST(EvaluateShare, LastBlockMayBeRagged) {
  Model model{{"hidden", 70}};
  EXPECT_EQ(shown(model, model.layout("x: hidden/32")), Lines{"x @0 hidden/32 0+3*1"});
  EXPECT_EQ(shown(model, model.layout("x: hidden/32", shares(model, {{"hidden", {{32, 70}}}}))),
            Lines{"x @0 hidden/32 1+2*1"});
}

bool is_legal(Index size, Index block, Index parts) {
  Model model{{"inter", size}};
  try {
    for (Index part = 0; part < parts; ++part)
      model.layout(fmt::format("x: inter/{}", block),
                   shares(model, {{"inter", {{part * size / parts, (part + 1) * size / parts}}}}));
    return true;
  } catch (Error const&) {
    return false;
  }
}

TEST(EvaluateShare, LegalCutsOfBlocks) {
  EXPECT_TRUE(is_legal(18432, 128, 8) && is_legal(18432, 128, 16) && !is_legal(18432, 128, 32));
  EXPECT_TRUE(is_legal(2048, 128, 16) && !is_legal(2048, 128, 32));
  EXPECT_TRUE(is_legal(3072, 128, 8) && !is_legal(3072, 128, 16));
  EXPECT_TRUE(is_legal(24576, 128, 64) && !is_legal(24576, 128, 128));
  for (Index const parts : {1, 2, 3, 5, 6, 9, 10}) EXPECT_TRUE(is_legal(2880, 32, parts)) << parts;
  for (Index const parts : {4, 8, 12}) EXPECT_FALSE(is_legal(2880, 32, parts)) << parts;
}

TEST(EvaluateShare, RefusalsNamePlaceAndNumbers) {
  Model model{{"dim", 4}, {"group", 2}, {"head", 2}, {"inter", 1152}};
  struct Case {
    char const* text;
    Shares held;
    char const* part;
  };
  Case const cases[] = {
      {"(group (q: head dm))",
       {},
       "'(group (q: head dm))': 'dm' at column 17 is not an axis. Did you mean 'dim'? This model's axes: dim, group, head, inter"},
      {"x: inter/128", shares(model, {{"inter", {{576, 1152}}}}),
       "a cut of axis 'inter' at 576 falls inside a block of 128"},
      {"x: inter/128", shares(model, {{"inter", {{0, 576}}}}), "at 576 falls inside"},
      {"x: inter%128", shares(model, {{"inter", {{0, 64}}}}), "needs whole blocks of 128"},
      {"x: inter/128", shares(model, {{"inter", {{0, 64, true}}}}), "64 elements of padding"},
      {"x: dim", shares(model, {{"dim", {{2, 5}}}}), "[2, 5) of axis 'dim' is outside its 4"},
      {"x: dim%glu", {}, "'glu' is neither a number nor the name of a size"},
      {"x: inter%128/3", {}, "128 is not a multiple of 3"},
      {"x: inter/0", {}, "divides by 0"},
      {"x: inter%0", {}, "0 is not a multiple"},
      {"x: dim head dim", {}, "axis 'dim' appears twice in 'x'"},
      {"x: inter/2 inter%4", {}, "axis 'inter' appears twice"},
      {"x: fill(9223372036854775807) dim", {}, "does not fit in 64 bits"},
      {"x: dim%99999999999999999999", {}, "neither a number"},
  };
  for (Case const& c : cases) {
    std::string const sentence = sentence_of([&] { model.layout(c.text, c.held); });
    EXPECT_NE(sentence.find(c.part), std::string::npos) << c.text << " gave: " << sentence;
  }
}

TEST(EvaluateShare, RefusesASizeBelowZero) {
  Model model{{"dim", 4}};
  model.named_sizes["glu"] = -2;
  EXPECT_EQ(sentence_of([&] { model.layout("x: dim%glu"); }),
            "'x: dim%glu': 'dim%glu' at column 4: 'glu' is -2, below zero.");
}

TEST(EvaluateShare, RefusesATensorTheModelLacks) {
  Model model{{"a", 2}};
  LayoutScope scope = model.scope();
  scope.tensor = [](std::string_view) { return std::nullopt; };
  EXPECT_NE(sentence_of([&] {
              evaluate(parse_layout("x: (q: a)"), scope, {});
            }).find("holds 'x.q', which is not a tensor"),
            std::string::npos);
}

TEST(EvaluateShare, RefusesAnExplosionOfPieces) {
  Model model{{"a", 2}};
  std::string text = "x:";
  for (int i = 0; i < 30; ++i) text += " (a|a)";
  EXPECT_NE(sentence_of([&] { model.layout(text); }), "");
}

TEST(EvaluateShare, LongAndDeepExpressionsDoNotExhaustTheStack) {
  Model model{{"a", 2}};
  std::string longest = "x:";
  while (longest.size() + 2 <= 4096) longest += " 1";
  EXPECT_EQ(model.layout(longest).pieces.size(), 1U);
  EXPECT_EQ(evaluate_flat(parse_layout(longest), model.scope(), {}, 0, 1).pieces.size(), 1U);
  std::string deep = "x: ";
  for (int i = 0; i < 64; ++i) deep += "(1 1 ";
  deep += "a" + std::string(64, ')');
  EXPECT_EQ(model.layout(deep).shape, Shape{2});
}

}  // namespace
}  // namespace reshard::test
