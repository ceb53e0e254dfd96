#include "core/layout/pieces/join.hpp"

#include <gtest/gtest.h>

#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

using Lines = std::vector<std::string>;

/// "2: 0→4 (2,4,8)(4,1,1)": the source piece, the offsets and the merged dims.
Lines copies(Model const& model, std::vector<Piece> const& src, std::vector<Piece> const& dst,
             std::vector<char const*> const& order) {
  std::vector<AxisId> ids;
  for (char const* name : order) ids.push_back(model.axis(name));
  Join const result = join(src, dst, ids, model.axes);
  Lines lines;
  for (std::size_t i = 0; i < result.overlaps.size(); ++i) {
    Overlap const& overlap = result.overlaps[i];
    std::string line = fmt::format("{}->{}: {}->{} ", overlap.src, overlap.dst, overlap.src_offset,
                                   overlap.dst_offset);
    for (CopyDim const& dim : merged(result.span_of(i)))
      line += fmt::format("({},{},{})", dim.count, dim.src_stride, dim.dst_stride);
    lines.push_back(line);
  }
  return lines;
}

std::string const fused = "attn: (group (q: head dim | k: dim | v: dim)) hidden";

Model small_attention() {
  return {{"group", 2}, {"head", 2}, {"dim", 3}, {"hidden", 5}, {"layer", 4}};
}

TEST(Join, SeparateAttentionIntoFused) {
  Model model = small_attention();
  EXPECT_EQ(copies(model, model.pieces("attn.q: (group head dim) hidden", "attn.q"),
                   model.pieces(fused, "attn.q"), {"group", "head", "dim", "hidden"}),
            Lines{"0->0: 0->0 (2,30,60)(30,1,1)"});
  EXPECT_EQ(copies(model, model.pieces("attn.k: (group dim) hidden", "attn.k"),
                   model.pieces(fused, "attn.k"), {"group", "dim", "hidden"}),
            Lines{"0->0: 0->30 (2,15,60)(15,1,1)"});
  EXPECT_EQ(copies(model, model.pieces("attn.v: (group dim) hidden", "attn.v"),
                   model.pieces(fused, "attn.v"), {"group", "dim", "hidden"}),
            Lines{"0->0: 0->45 (2,15,60)(15,1,1)"});
}

TEST(Join, TwoRanksIntoOneAreSixCopies) {
  Model model = small_attention();
  std::size_t count = 0;
  for (char const* name : {"attn.q", "attn.k", "attn.v"}) {
    std::vector<Piece> ranks = model.pieces(fused, name, shares(model, {{"group", {{0, 1}}}}));
    for (Piece& piece : model.pieces(fused, name, shares(model, {{"group", {{1, 2}}}})))
      ranks.push_back(std::move(piece));
    std::vector<char const*> order{"group", "dim", "hidden"};
    if (name == std::string("attn.q")) order.insert(order.begin() + 1, "head");
    count += copies(model, ranks, model.pieces(fused, name), order).size();
  }
  EXPECT_EQ(count, 6U);
}

TEST(Join, HalvesIntoInterleavedBlocks) {
  Model model{{"inter", 8}, {"hidden", 2}};
  std::string const halves = "ffn: (gate: inter | up: inter) hidden";
  std::string const blocks = "ffn: (inter/2 (gate: inter%2 | up: inter%2)) hidden";
  Lines found;
  for (reshard::Run const run : {reshard::Run{0, 4}, reshard::Run{4, 8}})
    for (char const* name : {"ffn.gate", "ffn.up"})
      for (std::string const& line :
           copies(model, model.pieces(halves, name, shares(model, {{"inter", {run}}})),
                  model.pieces(blocks, name), {"inter", "hidden"}))
        found.push_back(line);
  EXPECT_EQ(found, (Lines{"0->0: 0->0 (2,4,8)(4,1,1)", "0->0: 8->4 (2,4,8)(4,1,1)",
                          "0->0: 0->16 (2,4,8)(4,1,1)", "0->0: 8->20 (2,4,8)(4,1,1)"}));
}

TEST(Join, PackedExpertOutOfAllExperts) {
  Model model{{"expert", 2}, {"mi", 2}, {"hidden", 64}};
  Lines found;
  for (char const* name : {"x.gate.q", "x.up.q"}) {
    std::vector<Piece> one = model.pieces("x: (gate.q: mi | up.q: mi) hidden/2", name);
    for (Piece& piece : one) piece.digits.push_back({model.axis("expert"), 2, 1, 1, 1, 0});
    for (std::string const& line :
         copies(model, model.pieces("x: expert (mi (gate.q: | up.q:)) hidden/32 hidden%32/2", name),
                one, {"expert", "mi", "hidden"}))
      found.push_back(line);
  }
  EXPECT_EQ(found, (Lines{"0->0: 128->0 (2,64,32)(32,1,1)", "0->0: 160->64 (2,64,32)(32,1,1)"}));
}

TEST(Join, AnAxisMayStandInTheNameOnOneSide) {
  Model model{{"layer", 3}, {"hidden", 4}};
  AxisId const layer = model.axis("layer");
  std::vector<Piece> const stacked = model.pieces("norm: layer hidden", "norm");
  std::vector<Piece> named;
  for (Index k = 0; k < 3; ++k)
    for (Piece& piece : model.pieces("norm: hidden", "norm")) {
      piece.digits.push_back({layer, 3, 1, k, 1, 0});
      named.push_back(std::move(piece));
    }
  EXPECT_EQ(copies(model, named, stacked, {"layer", "hidden"}),
            (Lines{"0->0: 0->0 (4,1,1)", "1->0: 0->4 (4,1,1)", "2->0: 0->8 (4,1,1)"}));
  EXPECT_EQ(copies(model, stacked, named, {"layer", "hidden"}),
            (Lines{"0->0: 0->0 (4,1,1)", "0->1: 4->0 (4,1,1)", "0->2: 8->0 (4,1,1)"}));
}

TEST(Join, EverySecondExpertByNumberOfTheName) {
  Model model{{"expert", 6}, {"mi", 2}};
  AxisId const expert = model.axis("expert");
  std::vector<Piece> odd = model.pieces("g: (expert/2 mi)", "g");
  odd[0].digits.push_back({expert, 2, 1, 1, 1, 0});
  std::vector<Piece> const listed =
      model.pieces("g: expert mi", "g", shares(model, {{"expert", {{5, 6}, {2, 3}}}}));
  EXPECT_EQ(copies(model, odd, listed, {"expert", "mi"}), Lines{"0->0: 4->0 (2,1,1)"});
}

TEST(Join, CopiesOfATargetAreWrittenAndThoseOfASourceAreNot) {
  Model model{{"head", 2}, {"dim", 3}};
  std::vector<Piece> const once = model.pieces("sg: head", "sg");
  std::vector<Piece> const repeated = model.pieces("sg: head *dim", "sg");
  EXPECT_EQ(copies(model, once, repeated, {"head"}),
            (Lines{"0->0: 0->0 (2,1,3)", "0->0: 0->1 (2,1,3)", "0->0: 0->2 (2,1,3)"}));
  EXPECT_EQ(copies(model, repeated, once, {"head"}), Lines{"0->0: 0->0 (2,3,1)"});
}

TEST(Join, ScalarsMeet) {
  Model model{{"layer", 1}};
  std::vector<Piece> const scalar = model.pieces("x:", "x");
  EXPECT_EQ(copies(model, scalar, scalar, {}), Lines{"0->0: 0->0 "});
  EXPECT_EQ(copies(model, scalar, model.pieces("x: layer", "x"), {"layer"}), Lines{"0->0: 0->0 "})
      << "an axis of one index may be absent";
}

TEST(Join, NothingMeetsNothing) {
  Model model{{"a", 4}};
  EXPECT_TRUE(copies(model, {}, model.pieces("x: a", "x"), {"a"}).empty());
  EXPECT_TRUE(copies(model, model.pieces("x: a", "x", shares(model, {{"a", {{0, 2}}}})),
                     model.pieces("x: a", "x", shares(model, {{"a", {{2, 4}}}})), {"a"})
                  .empty());
}

TEST(Join, DigitsAreInCanonicalOrderWhateverThePieces) {
  Model model{{"a", 4}, {"b", 6}};
  std::vector<Piece> const src = model.pieces("x: b a", "x");
  std::vector<Piece> const dst = model.pieces("x: (b%2 a b/2)", "x");
  AxisId const order[] = {model.axis("a"), model.axis("b")};
  Join const result = join(src, dst, order, model.axes);
  ASSERT_EQ(result.digits.size(), 3U);
  EXPECT_EQ(result.digits[0].axis, model.axis("a"));
  EXPECT_EQ(result.digits[1].div, 2);
  EXPECT_EQ(result.digits[2].div, 1);
}

TEST(Join, AnAxisThePieceLacksIsABug) {
  Model model{{"a", 4}, {"b", 6}};
  std::vector<Piece> const pieces = model.pieces("x: a", "x");
  AxisId const order[] = {model.axis("a"), model.axis("b")};
  EXPECT_NE(sentence_of([&] { join(pieces, pieces, order, model.axes); }, ErrorKind::internal), "");
}

TEST(Join, AnAxisTheTensorLacksOrHasTwiceOrInPartIsRefused) {
  Model model{{"a", 4}, {"b", 6}};
  AxisId const only_a[] = {model.axis("a")};
  std::vector<Piece> const both = model.pieces("x: a b", "x");
  EXPECT_NE(sentence_of([&] { join(both, both, only_a, model.axes); }).find("no such axis"),
            std::string::npos);
  std::vector<Piece> twice = model.pieces("x: a", "x");
  twice[0].digits.push_back({model.axis("a"), 4, 1, 1, 1, 0});
  EXPECT_NE(sentence_of([&] { join(twice, twice, only_a, model.axes); }).find("appears twice"),
            std::string::npos);
  std::vector<Piece> const half = model.pieces("x: a/2", "x");
  EXPECT_NE(sentence_of([&] {
              join(model.pieces("x: a", "x"), half, only_a, model.axes);
            }).find("leaves out (index mod 2) div 1"),
            std::string::npos);
}

TEST(Merged, DropsOnesAndJoinsRuns) {
  std::vector<OverlapDigit> const one_run{
      {0, 2, 15, 15}, {0, 1, 99, 98}, {0, 3, 5, 5}, {2, 5, 1, 1}};
  EXPECT_EQ(merged(one_run), (std::vector<CopyDim>{{30, 1, 1}}));
  std::vector<OverlapDigit> const transposed{{0, 2, 1, 3}, {0, 3, 2, 1}};
  EXPECT_EQ(merged(transposed), (std::vector<CopyDim>{{2, 1, 3}, {3, 2, 1}}));
  std::vector<OverlapDigit> const inner_first{{0, 5, 1, 1}, {0, 2, 5, 5}};
  EXPECT_EQ(merged(inner_first), (std::vector<CopyDim>{{10, 1, 1}}));
  EXPECT_TRUE(merged({}).empty());
}

}  // namespace
}  // namespace reshard::test
