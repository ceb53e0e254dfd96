// Layouts of the matrices of low-rank adapters: the worked examples.
#include "core/layout/adapter_layout.hpp"

#include <gtest/gtest.h>

#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

Model sizes() {
  return Model{{"group", 2},  {"head", 3}, {"dim", 4},    {"hidden", 10},
               {"inter", 12}, {"eh", 10},  {"expert", 3}, {"rank4", 4}};
}

AdapterShape shape(AdapterMatrix matrix) {
  return {matrix, "rank4", matrix == AdapterMatrix::a ? ".lora_a.r4" : ".lora_b.r4", {}, {}};
}

/// Shapes and pieces must be those of expressions written by hand.
void expect_layouts(std::vector<LayoutExpr> const& made, std::vector<std::string> const& by_hand) {
  Model model = sizes();
  ASSERT_EQ(made.size(), by_hand.size());
  for (std::size_t i = 0; i < made.size(); ++i) {
    SCOPED_TRACE(by_hand[i]);
    LayoutExpr const wanted = parse_layout(by_hand[i]);
    EXPECT_EQ(made[i].tensors(), wanted.tensors());
    Layout const a = evaluate(made[i], model.scope(), {});
    Layout const b = evaluate(wanted, model.scope(), {});
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_EQ(shown(model, a), shown(model, b));
  }
}

constexpr char const* qkv = "attn: (group (q: head dim | k: dim | v: dim)) hidden";

TEST(AdapterLayout, OneWeightHasOneLayoutEach) {
  LayoutExpr const weight = parse_layout("attn.o: hidden (group head dim)");
  expect_layouts(adapter_layouts(weight, {}, shape(AdapterMatrix::a)),
                 {"attn.o.lora_a.r4: rank4 (group head dim)"});
  expect_layouts(adapter_layouts(weight, {}, shape(AdapterMatrix::b)),
                 {"attn.o.lora_b.r4: hidden rank4"});
}

TEST(AdapterLayout, FusedWeightsShareTheMatrixOfTheDimensionWithoutTags) {
  expect_layouts(adapter_layouts(parse_layout(qkv), {}, shape(AdapterMatrix::a)),
                 {"attn.q.lora_a.r4: rank4 hidden", "attn.k.lora_a.r4: rank4 hidden",
                  "attn.v.lora_a.r4: rank4 hidden"});
  expect_layouts(
      adapter_layouts(parse_layout(qkv), {}, shape(AdapterMatrix::b)),
      {"attn: (group (q.lora_b.r4: head dim | k.lora_b.r4: dim | v.lora_b.r4: dim)) rank4"});
  LayoutExpr const columns = parse_layout("mtp: eh (e: hidden | h: hidden)");
  expect_layouts(adapter_layouts(columns, {}, shape(AdapterMatrix::a)),
                 {"mtp: rank4 (e.lora_a.r4: hidden | h.lora_a.r4: hidden)"});
  expect_layouts(adapter_layouts(columns, {}, shape(AdapterMatrix::b)),
                 {"mtp.e.lora_b.r4: eh rank4", "mtp.h.lora_b.r4: eh rank4"});
}

TEST(AdapterLayout, APartOfAFusedWeightIsAWeight) {
  LayoutExpr const k = only_tensor(parse_layout(qkv), "attn.k");
  expect_layouts({k}, {"attn: (group (k: dim)) hidden"});
  expect_layouts(adapter_layouts(k, {}, shape(AdapterMatrix::a)),
                 {"attn.k.lora_a.r4: rank4 hidden"});
  expect_layouts(adapter_layouts(k, {}, shape(AdapterMatrix::b)),
                 {"attn.k.lora_b.r4: (group dim) rank4"});
}

TEST(AdapterLayout, ExpertsStandInFrontOrInsideAsPeftPacksThem) {
  LayoutExpr const weight = parse_layout("experts: expert (gate: inter | up: inter) hidden");
  LinearDims const dims{1, 2};
  AdapterShape a = shape(AdapterMatrix::a);
  AdapterShape b = shape(AdapterMatrix::b);
  a.inside = b.inside = {"expert"};
  expect_layouts(adapter_layouts(weight, dims, a), {"experts.gate.lora_a.r4: (expert rank4) hidden",
                                                    "experts.up.lora_a.r4: (expert rank4) hidden"});
  expect_layouts(adapter_layouts(weight, dims, b),
                 {"experts: (gate.lora_b.r4: inter | up.lora_b.r4: inter) (rank4 expert)"});
  b.inside.clear();
  b.front = {"expert"};
  expect_layouts(adapter_layouts(weight, dims, b),
                 {"experts: expert (gate.lora_b.r4: inter | up.lora_b.r4: inter) rank4"});
}

TEST(AdapterLayout, RowsOfRanksAndOfHalvesAreDigits) {
  LayoutExpr joined = parse_layout("ffn: (gate: inter | up: inter) hidden");
  ASSERT_TRUE(put_ranks_outside(joined.dims[0], "inter", 12, 3));
  expect_layouts({joined}, {"ffn: (inter/4 (gate: inter%4 | up: inter%4)) hidden"});
  LayoutExpr halved = parse_layout("ffn.up: inter hidden");
  ASSERT_TRUE(put_halves_outside(halved.dims[0], "inter", 12, 3));
  expect_layouts({halved}, {"ffn.up: (inter%4/2 inter/4 inter%2) hidden"});
  LayoutExpr other = parse_layout(qkv);
  EXPECT_FALSE(put_ranks_outside(other.dims[0], "group", 2, 2));
  EXPECT_FALSE(put_halves_outside(other.dims[0], "group", 2, 1));
}

}  // namespace
}  // namespace reshard::test
