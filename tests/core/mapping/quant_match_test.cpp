// Which scheme a stored weight is in.
#include "tests/core/mapping/quant_job.hpp"

namespace reshard::test {
namespace {

std::string matched(Job const& job, Table const& table,
                    std::string const& weight = "l.0.gate.weight",
                    MatchFor what = MatchFor::moving) {
  auto const match =
      match_quantised(job.model, *job.side, job.name(weight), {}, find_in(table), what);
  if (!match) return "";
  std::string text = job.model.schemes()[match->scheme].name;
  for (std::string const& part : match->stored_parts) text += " " + (part.empty() ? "-" : part);
  return text;
}

TEST(QuantMatch, NamesDtypesAndShapesDecide) {
  Job const job(family);
  std::string const tiles = "tiles l.0.gate.weight l.0.gate.weight_scale_inv -";
  Table table;
  add_tiles(table, "l.0.gate", {32, 64});
  EXPECT_EQ(matched(job, table), tiles);
  table["l.0.gate.weight_scale_inv"].dtype = DType::bf16;
  EXPECT_EQ(matched(job, table), tiles);
  table["l.0.gate.weight_scale_inv"].dtype = DType::f16;
  EXPECT_EQ(matched(job, table), "");
  table["l.0.gate.weight_scale_inv"] = {DType::f32, {4, 2}};
  EXPECT_EQ(matched(job, table), "");
  table["l.0.gate.weight_scale_inv"] = {DType::f32, {2, 4}};
  EXPECT_EQ(matched(job, table), tiles);
  table["l.0.gate.weight"].shape = {32, 32};
  EXPECT_EQ(matched(job, table), "");
  table.erase("l.0.gate.weight");
  EXPECT_EQ(matched(job, table), "");
}

TEST(QuantMatch, AnOptionalPartMayBeAbsentButMustFit) {
  Job const job(family);
  Table table;
  add_tiles(table, "l.0.gate", {32, 64});
  table["l.0.gate.input_scale"] = {DType::f32, {}};
  EXPECT_EQ(matched(job, table),
            "tiles l.0.gate.weight l.0.gate.weight_scale_inv l.0.gate.input_scale");
  table["l.0.gate.input_scale"] = {DType::f32, {1}};
  EXPECT_EQ(matched(job, table), "tiles l.0.gate.weight l.0.gate.weight_scale_inv -");
}

TEST(QuantMatch, TheFirstSchemeThatFitsWins) {
  Job const job(family);
  Table table;
  add_packed(table, "l.0.gate", 32, 64);
  EXPECT_EQ(matched(job, table),
            "packed l.0.gate.weight l.0.gate.weight_scale l.0.gate.weight_shape");
  table["l.0.gate.weight"] = {DType::f8_e4m3, {32, 64}};
  table["l.0.gate.weight_scale"] = {DType::f32, {}};
  EXPECT_EQ(matched(job, table), "whole l.0.gate.weight l.0.gate.weight_scale");
  table["l.0.gate.weight_scale_inv"] = {DType::f32, {2, 4}};
  EXPECT_EQ(matched(job, table).substr(0, 5), "tiles");
}

TEST(QuantMatch, AWeightUnderAnotherNameHasItsPartsThere) {
  Job const job(family);
  Table table;
  add_tiles(table, "l.0.w1", {32, 64});
  EXPECT_EQ(matched(job, table), "tiles l.0.w1.weight l.0.w1.weight_scale_inv -");
}

TEST(QuantMatch, ForValuesBlocksNeedNotFitTheAxes) {
  Job const job(R"(
[quant.odd]
values = { name = "weight", dtype = ["F8_E4M3"], blocks = [1, 1] }
scale = { name = "odd_scale", dtype = ["F32"], blocks = [24, "16:4"] }
zero = { name = "zero", dtype = ["I32"], blocks = ["24~5", "one"] }
shape = { name = "shape", dtype = ["I64"], blocks = ["all", "all"], vector = 2 }
[stored]
"l.{layer}.up.weight" = "experts.up: (expert inter) hidden"
)");
  Table table{{"l.0.up.weight", {DType::f8_e4m3, {128, 64}}},
              {"l.0.up.odd_scale", {DType::f32, {6, 4, 4}}},
              {"l.0.up.zero", {DType::i32, {27, 1}}},
              {"l.0.up.shape", {DType::i64, {2}}}};
  EXPECT_EQ(matched(job, table, "l.0.up.weight"), "");
  EXPECT_EQ(matched(job, table, "l.0.up.weight", MatchFor::values),
            "odd l.0.up.weight l.0.up.odd_scale l.0.up.zero l.0.up.shape");
  table["l.0.up.zero"].shape = {30, 1};
  EXPECT_EQ(matched(job, table, "l.0.up.weight", MatchFor::values), "");
}

TEST(QuantMatch, AVectorIsNoMatrix) {
  Job const job(family);
  Table const table{{"l.0.norm.weight", {DType::f8_e4m3, {64}}},
                    {"l.0.norm.weight_scale", {DType::f32, {}}}};
  EXPECT_EQ(matched(job, table, "l.0.norm.weight"), "");
}

}  // namespace
}  // namespace reshard::test
