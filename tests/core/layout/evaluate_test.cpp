// Whole tensors, boxes and flat ranges: the worked example and the vectors of
// docs/formats/layout-expressions.md.
#include <gtest/gtest.h>

#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

using Lines = std::vector<std::string>;
using Shape = std::vector<Index>;

std::string const fused = "attn: (group (q: head dim | k: dim | v: dim)) hidden";

Model small_attention() { return {{"group", 2}, {"head", 2}, {"dim", 3}, {"hidden", 5}}; }

TEST(Evaluate, WholeFusedAttentionIsThreePieces) {
  Model model = small_attention();
  Layout const layout = model.layout(fused);
  EXPECT_EQ(layout.shape, (Shape{24, 5}));
  EXPECT_EQ(shown(model, layout),
            (Lines{"attn.q @0 group 0+2*60, head 0+2*15, dim 0+3*5, hidden 0+5*1",
                   "attn.k @30 group 0+2*60, dim 0+3*5, hidden 0+5*1",
                   "attn.v @45 group 0+2*60, dim 0+3*5, hidden 0+5*1"}));
}

TEST(Evaluate, ShareOfGroupsShrinksShapeAndStrides) {
  Model model = small_attention();
  Layout const layout = model.layout(fused, shares(model, {{"group", {{1, 2}}}}));
  EXPECT_EQ(layout.shape, (Shape{12, 5}));
  EXPECT_EQ(shown(model, layout),
            (Lines{"attn.q @0 group 1+1*60, head 0+2*15, dim 0+3*5, hidden 0+5*1",
                   "attn.k @30 group 1+1*60, dim 0+3*5, hidden 0+5*1",
                   "attn.v @45 group 1+1*60, dim 0+3*5, hidden 0+5*1"}));
}

TEST(Evaluate, OneElementIsAScalar) {
  Model model{{"a", 2}};
  Layout const layout = model.layout("x:");
  EXPECT_TRUE(layout.shape.empty());
  EXPECT_EQ(shown(model, layout), Lines{"x @0"});
}

TEST(Evaluate, ZeroExtentHoldsNothing) {
  Model model{{"a", 0}, {"b", 3}};
  Layout const layout = model.layout("x: b (q: a | k: a)");
  EXPECT_EQ(layout.shape, (Shape{3, 0}));
  EXPECT_TRUE(layout.pieces.empty());
}

TEST(Evaluate, EmptyAlternativesInterleave) {
  Model model{{"expert", 2}, {"mi", 2}, {"hidden", 64}};
  Layout const layout = model.layout("x: expert hidden (mi (gate: | up:))");
  EXPECT_EQ(layout.shape, (Shape{2, 64, 4}));
  EXPECT_EQ(shown(model, layout), (Lines{"x.gate @0 expert 0+2*256, hidden 0+64*4, mi 0+2*2",
                                         "x.up @1 expert 0+2*256, hidden 0+64*4, mi 0+2*2"}));
}

TEST(Evaluate, PackedExpertsCountHiddenInBlocks) {
  Model model{{"expert", 2}, {"mi", 2}, {"hidden", 64}};
  Layout const blocks = model.layout("x: expert (mi (gate.q: | up.q:)) hidden/32 hidden%32/2");
  EXPECT_EQ(blocks.shape, (Shape{2, 4, 2, 16}));
  EXPECT_EQ(shown(model, blocks),
            (Lines{"x.gate.q @0 expert 0+2*128, mi 0+2*64, hidden/32 0+2*16, hidden%32/2 0+16*1",
                   "x.up.q @32 expert 0+2*128, mi 0+2*64, hidden/32 0+2*16, hidden%32/2 0+16*1"}));
  Layout const scales = model.layout("x: expert (mi (gate.s: | up.s:)) hidden/32");
  EXPECT_EQ(scales.shape, (Shape{2, 4, 2}));
  EXPECT_EQ(shown(model, scales), (Lines{"x.gate.s @0 expert 0+2*8, mi 0+2*4, hidden/32 0+2*1",
                                         "x.up.s @2 expert 0+2*8, mi 0+2*4, hidden/32 0+2*1"}));
}

TEST(Evaluate, FlatExpertsAreColumnsOfEveryExpert) {
  Model model{{"expert", 2}, {"mi", 1}, {"hidden", 2}};
  EXPECT_EQ(shown(model, model.layout("x: expert hidden (gate: mi | up: mi)")),
            (Lines{"x.gate @0 expert 0+2*4, hidden 0+2*2, mi 0+1*1",
                   "x.up @1 expert 0+2*4, hidden 0+2*2, mi 0+1*1"}));
}

TEST(Evaluate, RepeatsBecomeCopies) {
  Model model = small_attention();
  Layout const layout =
      model.layout("(group (q: head dim | sg: head *dim | k: dim | v: dim)) hidden");
  EXPECT_EQ(layout.shape, (Shape{36, 5}));
  EXPECT_EQ(shown(model, layout),
            (Lines{"q @0 group 0+2*90, head 0+2*15, dim 0+3*5, hidden 0+5*1",
                   "sg @30 group 0+2*90, head 0+2*15, hidden 0+5*1 copies (3,5)",
                   "k @60 group 0+2*90, dim 0+3*5, hidden 0+5*1",
                   "v @75 group 0+2*90, dim 0+3*5, hidden 0+5*1"}));
}

TEST(Evaluate, GatedDeltaNetIsFourPieces) {
  Model model{{"kh", 2}, {"rho", 2}, {"dk", 3}, {"dv", 2}, {"hidden", 4}};
  Layout const layout = model.layout("gdn: (kh (q: dk | k: dk | v: rho dv | z: rho dv)) hidden");
  EXPECT_EQ(layout.shape, (Shape{28, 4}));
  EXPECT_EQ(shown(model, layout),
            (Lines{"gdn.q @0 kh 0+2*56, dk 0+3*4, hidden 0+4*1",
                   "gdn.k @12 kh 0+2*56, dk 0+3*4, hidden 0+4*1",
                   "gdn.v @24 kh 0+2*56, rho 0+2*8, dv 0+2*4, hidden 0+4*1",
                   "gdn.z @40 kh 0+2*56, rho 0+2*8, dv 0+2*4, hidden 0+4*1"}));
}

TEST(Evaluate, AlternativesInTheLastDimension) {
  Model model{{"eh", 4}, {"hidden", 4}};
  EXPECT_EQ(shown(model, model.layout("mtp: eh (h: hidden | e: hidden)")),
            (Lines{"mtp.h @0 eh 0+4*8, hidden 0+4*1", "mtp.e @4 eh 0+4*8, hidden 0+4*1"}));
  Layout const scalars = model.layout("hc: (pre: 1 | post: 1 | res: 1)");
  EXPECT_EQ(scalars.shape, Shape{3});
  EXPECT_EQ(shown(model, scalars), (Lines{"hc.pre @0", "hc.post @1", "hc.res @2"}));
}

TEST(Evaluate, FillsOfTheExpressionBelongToNoTensor) {
  Model model{{"a", 2}, {"b", 3}};
  model.named_sizes["pad"] = 2;
  Layout const layout = model.layout("x: b (q: a | fill(pad))");
  EXPECT_EQ(layout.shape, (Shape{3, 4}));
  EXPECT_EQ(shown(model, layout), (Lines{"x.q @0 b 0+3*4, a 0+2*1", "fill @2 (3,4)(2,1)"}));
}

TEST(Evaluate, StridesOfAView) {
  Model model{{"a", 2}, {"b", 3}, {"c", 4}};
  EXPECT_EQ(shown(model, model.layout("x: (a b) c", {}, {100, 7})),
            Lines{"x @0 a 0+2*300, b 0+3*100, c 0+4*7"});
  EXPECT_EQ(shown(model, model.layout("x: (q: a | k: b) c", {}, {1, 8})),
            (Lines{"x.q @0 a 0+2*1, c 0+4*8", "x.k @2 b 0+3*1, c 0+4*8"}));
}

TEST(Evaluate, StridesThatDoNotFitAreRefused) {
  Model model{{"a", 2}, {"b", 3}};
  Index const huge = std::numeric_limits<Index>::max() / 2;
  EXPECT_NE(sentence_of(
                [&] {
                  model.layout("x: a b", {}, {huge, huge});
                },
                ErrorKind::source)
                .find("does not fit"),
            std::string::npos);
  EXPECT_NE(sentence_of(
                [&] {
                  model.layout("x: a b", {}, {std::numeric_limits<Index>::min(), 1});
                },
                ErrorKind::source)
                .find("does not fit"),
            std::string::npos);
}

TEST(EvaluateBox, CutsInsideAProduct) {
  Model model = small_attention();
  Index const begin[] = {6, 0};
  Index const end[] = {12, 5};
  Layout const layout = evaluate_box(parse_layout(fused), model.scope(), {}, begin, end);
  EXPECT_EQ(layout.shape, (Shape{6, 5}));
  EXPECT_EQ(shown(model, layout), (Lines{"attn.k @0 group 0+1*60, dim 0+3*5, hidden 0+5*1",
                                         "attn.v @15 group 0+1*60, dim 0+3*5, hidden 0+5*1"}));
}

TEST(EvaluateBox, AcrossGroupsGivesHeadsAndTails) {
  Model model = small_attention();
  Index const begin[] = {4, 0};
  Index const end[] = {20, 5};
  Layout const layout = evaluate_box(parse_layout(fused), model.scope(), {}, begin, end);
  EXPECT_EQ(shown(model, layout),
            (Lines{"attn.q @0 group 0+1*60, head 1+1*15, dim 1+2*5, hidden 0+5*1",
                   "attn.k @10 group 0+1*60, dim 0+3*5, hidden 0+5*1",
                   "attn.v @25 group 0+1*60, dim 0+3*5, hidden 0+5*1",
                   "attn.q @40 group 1+1*60, head 0+2*15, dim 0+3*5, hidden 0+5*1",
                   "attn.k @70 group 1+1*60, dim 0+2*5, hidden 0+5*1"}));
}

TEST(EvaluateBox, CeilPartsOfRowsLeaveTheLastEmpty) {
  for (Index const rows : {7, 5}) {
    Model model{{"a", rows}};
    Index const part = (rows + 3) / 4;
    std::vector<Index> sizes;
    for (Index rank = 0; rank < 4; ++rank) {
      Index const begin[] = {std::min(rows, rank * part)};
      Index const end[] = {std::min(rows, (rank + 1) * part)};
      Layout const layout = evaluate_box(parse_layout("x: a"), model.scope(), {}, begin, end);
      EXPECT_EQ(layout.pieces.size(), begin[0] < end[0] ? 1U : 0U);
      sizes.push_back(layout.shape[0]);
    }
    EXPECT_EQ(sizes, rows == 7 ? (Shape{2, 2, 2, 1}) : (Shape{2, 2, 1, 0}));
  }
}

TEST(EvaluateBox, RefusesABoxOutsideOfTheTensor) {
  Model model = small_attention();
  LayoutExpr const expr = parse_layout(fused);
  Index const zero[] = {0, 0};
  Index const beyond[] = {25, 5};
  EXPECT_NE(
      sentence_of([&] { evaluate_box(expr, model.scope(), {}, zero, beyond); }, ErrorKind::source)
          .find("[0, 25) of dimension 0, which has 24"),
      std::string::npos);
  EXPECT_NE(sentence_of([&] { evaluate_box(expr, model.scope(), {}, {}, {}); }, ErrorKind::source)
                .find("0 dimensions"),
            std::string::npos);
}

TEST(EvaluateFlat, IsTailRowsHead) {
  Model model = small_attention();
  Layout const layout = evaluate_flat(parse_layout(fused), model.scope(), {}, 33, 58);
  EXPECT_EQ(layout.shape, Shape{25});
  EXPECT_EQ(shown(model, layout), (Lines{"attn.k @0 group 0+1*60, dim 0+1*5, hidden 3+2*1",
                                         "attn.k @2 group 0+1*60, dim 1+2*5, hidden 0+5*1",
                                         "attn.v @12 group 0+1*60, dim 0+2*5, hidden 0+5*1",
                                         "attn.v @22 group 0+1*60, dim 2+1*5, hidden 0+3*1"}));
}

TEST(EvaluateFlat, EmptyRangeHoldsNothingAndBadOnesAreRefused) {
  Model model = small_attention();
  LayoutExpr const expr = parse_layout(fused);
  EXPECT_TRUE(evaluate_flat(expr, model.scope(), {}, 33, 33).pieces.empty());
  EXPECT_NE(sentence_of([&] { evaluate_flat(expr, model.scope(), {}, 0, 121); }, ErrorKind::source)
                .find("[0, 121)"),
            std::string::npos);
}

}  // namespace
}  // namespace reshard::test
