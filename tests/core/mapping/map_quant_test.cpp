// [quant] of a map: mistakes, what it means for a model, names of parts.
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/mapping/model.hpp"

namespace reshard {
namespace {

std::string const values = "values = { name = 'weight', dtype = 'F8_E4M3', blocks = [1, 1] }\n";

std::string refusal(std::string const& quant) {
  try {
    parse_map_file("\n[quant.s]\n" + quant, "m.toml");
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.sentence();
  }
  return "no error";
}

TEST(MapQuant, MistakesNameFileAndLine) {
  struct Case {
    std::string quant;
    char const* sentence;
  };
  for (auto const& [quant, sentence] : std::vector<Case>{
           {"",
            "m.toml:2: the first part of a scheme is `values`, the tensor that represents the "
            "weight; a scheme without it has parts beside weights"},
           {"decode = { codes = 'e4m3' }",
            "m.toml:2: the first part of a scheme is `values`, the tensor that represents the "
            "weight; a scheme without it has parts beside weights"},
           {"scale = { name = 'scale', dtype = 'F32' }\n" + values,
            "m.toml:2: the first part of a scheme is `values`, the tensor that represents the "
            "weight; a scheme without it has parts beside weights"},
           {"values = 'weight'", "m.toml:3: a part must be a table."},
           {"values = { name = 'weight', dtype = 'F8_E4M3', block = [1, 1] }",
            "m.toml:3: 'block' is not a key of a part. Known: name, dtype, blocks, global_blocks, "
            "vector, optional, fused, when."},
           {"values = { name = 'weight', dtype = 'F8_E4M3', blocks = [1, 1], global_blocks = [1] }",
            "m.toml:3: global_blocks has as many items as blocks"},
           {"values = { dtype = 'F8_E4M3', blocks = [1, 1] }",
            "m.toml:3: a part needs `name` and `dtype`"},
           {"values = { name = 'weight', blocks = [1, 1] }",
            "m.toml:3: a part needs `name` and `dtype`"},
           {"values = { name = 'weight', dtype = [], blocks = [1, 1] }",
            "m.toml:3: a part needs `name` and `dtype`"},
           {"values = { name = 'weight', dtype = ['F8_E4M3', 'FP8'] }",
            "m.toml:3: 'FP8' is not a dtype. Use the names of safetensors: F8_E4M3, U8, …"},
           {"values = { name = 'weight', dtype = 8 }",
            "m.toml:3: dtype must be a string. Put it in quotes."},
           {"values = { name = 'weight', dtype = 'U8', blocks = '1, 1' }",
            "m.toml:3: blocks is a list, one item for each of the weight's last dimensions"},
           {"values = { name = 'weight', dtype = 'U8', blocks = [1.5, 1] }",
            "m.toml:3: an expression must be a string. Put it in quotes."},
           {"values = { name = 'weight', dtype = 'U8', blocks = ['4 +', 1] }", "m.toml:3: '4 +'"},
           {"values = { name = 'weight', dtype = 'U8', optional = 1 }",
            "m.toml:3: optional must be true or false."},
           {values + "\ndecode = 'e4m3'", "m.toml:5: decode must be a table."},
           {values + "decode = { code = 'e4m3' }",
            "m.toml:4: 'code' is not a key of decode. Known: codes, times, divided_by, order, "
            "transposed, divisor."},
           {values + "decode = { codes = 4 }",
            "m.toml:4: codes must be a string. Put it in quotes."},
           {values + "label = { methods = 'fp8' }",
            "m.toml:4: 'methods' is not a key of label. Known: method, algorithm, weights_alone, "
            "others, smoothed, type, strategy, group_size, bits."},
           {values + "label = { bits = 'four' }", "m.toml:4: 'four': 'four' is not defined here."},
       })
    EXPECT_EQ(refusal(quant).find(sentence), 0U) << quant << ": " << refusal(quant);
}

TEST(MapQuant, ASchemeIsATable) {
  EXPECT_THROW(parse_map_file("quant = 1\n", "m.toml"), Error);
  EXPECT_THROW(parse_map_file("quant = { s = 1 }\n", "m.toml"), Error);
}

// --- evaluated
// ----------------------------------------------------------------------------------------------------

std::vector<QuantScheme> schemes_of(std::string const& quant, std::string const& config) {
  MapFile const map = parse_map_file("axes = { hidden = 'hidden_size' }\n" + quant, "m.toml");
  return evaluate_schemes(map, Model(map, map, {parse_json(config, "config"), "config.json", 0}));
}

std::string block_refusal(std::string const& block, std::string const& config) {
  try {
    schemes_of(
        "[quant.s]\nvalues = { name = 'weight', dtype = 'U8', blocks = [1, '" + block + "'] }\n",
        config);
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.sentence();
  }
  return "no error";
}

TEST(QuantSchemes, BlocksComeFromFacts) {
  std::string const quant =
      "[quant.s]\nvalues = { name = 'weight', dtype = ['U8', 'I8'], blocks = [1, '32:2'] }\n"
      "scale = { name = 'weight_scale', dtype = 'BF16', blocks = ['q.block[0] ?? 128', 'hidden / 2'], optional = true }\n"
      "shape = { name = 'weight_shape', dtype = 'I64', blocks = ['all', 'one'], vector = 2 }\n"
      "zero = { name = 'weight_zero', dtype = 'I32', blocks = ['32~3', 'hidden'] }\n";
  auto const schemes = schemes_of(quant, R"({"hidden_size": 64, "q": {"block": [16, 8]}})");
  ASSERT_EQ(schemes.size(), 1U);
  ASSERT_EQ(schemes[0].parts.size(), 4U);
  EXPECT_EQ(schemes[0].parts[3].dims,
            (std::vector<PartDim>{{PartDim::Kind::words, 32, 3}, {PartDim::Kind::blocks, 64, 1}}));
  QuantPart const& codes = schemes[0].parts[0];
  EXPECT_EQ(codes.dtypes, (std::vector<DType>{DType::u8, DType::i8}));
  EXPECT_EQ(codes.dims[1].kind, PartDim::Kind::split);
  EXPECT_EQ(codes.dims[1].block, 32);
  EXPECT_EQ(codes.dims[1].inner, 2);
  QuantPart const& scale = schemes[0].parts[1];
  EXPECT_TRUE(scale.optional);
  EXPECT_EQ(scale.dims[0].block, 16);
  EXPECT_EQ(scale.dims[1].block, 32);
  EXPECT_EQ(schemes[0].parts[2].dims[0].kind, PartDim::Kind::all);
  EXPECT_EQ(schemes[0].parts[2].dims[1].kind, PartDim::Kind::one);
  EXPECT_EQ(schemes[0].parts[2].vector, 2);
  EXPECT_EQ(schemes_of(quant, R"({"hidden_size": 64})")[0].parts[1].dims[0].block, 128);
}

TEST(QuantSchemes, AConditionLeavesASchemeOut) {
  std::string const quant =
      "[quant.a]\nwhen = \"method == 'a'\"\n" + values + "[quant.b]\n" + values;
  EXPECT_EQ(schemes_of(quant, R"({"method": "a"})").size(), 2U);
  ASSERT_EQ(schemes_of(quant, R"({"method": "b"})").size(), 1U);
  EXPECT_EQ(schemes_of(quant, R"({})").front().name, "b");
}

TEST(QuantSchemes, ABlockMustBeAboveZero) {
  EXPECT_EQ(block_refusal("block", R"({"block": 0})"),
            "m.toml:2: a block of 's' is block = 0; it must be above zero.");
  EXPECT_EQ(block_refusal("0 - 4", "{}"),
            "m.toml:2: a block of 's' is 0 - 4 = -4; it must be above zero.");
  EXPECT_EQ(block_refusal("32:0", "{}"),
            "m.toml:2: a block of 's' is 0 = 0; it must be above zero.");
  EXPECT_NE(block_refusal("block", "{}").find("m.toml:3: 'block'"), std::string::npos)
      << block_refusal("block", "{}");
}

TEST(QuantNames, ThePartsWordTakesThePlaceOfWeight) {
  EXPECT_EQ(part_name("mlp.up_proj.weight", "weight_scale"), "mlp.up_proj.weight_scale");
  EXPECT_EQ(part_name("mlp.up_proj.weight", "weight"), "mlp.up_proj.weight");
  EXPECT_EQ(part_name("mlp.up_proj.weight", "input_scale"), "mlp.up_proj.input_scale");
  EXPECT_EQ(part_name("weight", "scale"), "scale");
  // An expert's number stays behind.
  EXPECT_EQ(part_name("linear_fc1.weight3", "input_scale"), "linear_fc1.input_scale3");
  EXPECT_EQ(part_name("experts.weight1", "weight_scale"), "experts.weight_scale1");
  EXPECT_EQ(part_name("{block}{x}linear_fc1.weight{e}", "weight_scale"),
            "{block}{x}linear_fc1.weight_scale{e}");
  EXPECT_EQ(part_name("mlp.up_proj.weight", "._weight_scale"), "mlp.up_proj._weight_scale");
  // An ending of `apart`.
  EXPECT_EQ(part_name("in_proj.weight.z", "weight_scale"), "in_proj.weight_scale.z");
  EXPECT_EQ(part_name("fc1.weight_w", "weight_packed"), "fc1.weight_packed_w");
  // No "weight" in the last word.
  EXPECT_EQ(part_name("experts.gate_up_proj", "weight_blocks"), "experts.gate_up_proj_blocks");
  EXPECT_EQ(part_name("experts.gate_up_proj", "input_scale"), "experts.gate_up_proj_input_scale");
  EXPECT_EQ(part_name("experts.gate_up_proj", "weight"), "experts.gate_up_proj");
  EXPECT_EQ(part_name("weights.gate", "weight_scale"), "weights.gate_scale");
  EXPECT_EQ(part_name("weight_norm.x.gate", "weight_scale"), "weight_norm.x.gate_scale");
  EXPECT_EQ(part_name("weight_norm.weight", "weight_scale"), "weight_norm.weight_scale");
}

TEST(QuantSchemes, EveryGroupOfTheConfigHasItsBlocks) {
  std::string const quant =
      "[quant.s]\n"
      "first = \"group.strategy == 'block'\"\n"
      "values = { name = 'weight', dtype = ['I8'], blocks = [1, 1] }\n"
      "scale = { name = 'scale', dtype = ['F32'], blocks = ['group.block[0] ?? 1', 'group.size ?? "
      "32'] }\n"
      "[quant.t]\n" +
      values;
  auto const names = [&](std::string const& groups) {
    std::string text;
    for (QuantScheme const& scheme :
         schemes_of(quant, R"({"quantization_config": {"config_groups": )" + groups + "}}"))
      text += fmt::format("{} {}, ", scheme.name, scheme.parts.back().dims.back().block);
    return text;
  };
  std::string const t =
      fmt::format("t {}, ", schemes_of(quant, "{}").back().parts.back().dims.back().block);
  EXPECT_EQ(names("{}"), "s 32, " + t);
  EXPECT_EQ(names(R"({"a": {}, "b": 3})"), "s 32, " + t);
  EXPECT_EQ(names(R"({"a": {"weights": {"size": 64}}, "b": {"weights": {"size": 64}}})"),
            "s 64, " + t);
  EXPECT_EQ(names(R"({"a": {"weights": {"size": 64}}, "b": {"weights": {"size": 128}}})"),
            "s 64, s_1x128 128, " + t);
  EXPECT_EQ(names(R"({"a": {"weights": {"size": 64}},
                      "b": {"weights": {"size": 16, "strategy": "block", "block": [8]}}})"),
            "s_8x16 16, s 64, " + t)
      << "a form that shapes do not tell from others comes first";
}

}  // namespace
}  // namespace reshard
