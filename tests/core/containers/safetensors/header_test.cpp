#include <algorithm>
#include <chrono>

#include <gtest/gtest.h>

#include "core/base/files/file.hpp"
#include "tests/core/containers/safetensors/header_files.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::safetensors {
namespace {

std::vector<std::string> names_of(Header const& header) {
  std::vector<std::string> names;
  for (FileTensor const& tensor : header.tensors) names.push_back(tensor.name);
  return names;
}

// The worked example of docs/formats/safetensors.md, 1.
constexpr std::string_view example =
    R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
    R"("b":{"dtype":"U8","shape":[3],"data_offsets":[12,15]}} )";

TEST(SafetensorsHeader, ReadsTheWorkedExample) {
  std::string const file = file_text(example, 15);
  Header const header = parse(file);
  EXPECT_EQ(header.header_bytes, 152U);
  EXPECT_EQ(header.metadata, (std::vector<std::pair<std::string, std::string>>{{"format", "pt"}}));
  ASSERT_EQ(names_of(header), (std::vector<std::string>{"w", "b"}));
  FileTensor const& w = header.tensors[0];
  EXPECT_EQ(w.dtype, DType::bf16);
  EXPECT_EQ(w.shape, (std::vector<Index>{2, 3}));
  EXPECT_TRUE(w.strides.empty());
  EXPECT_EQ(w.offset_bytes, header.header_bytes);
  EXPECT_EQ(w.size_bytes, 12U);
  EXPECT_EQ(header.tensors[1].offset_bytes, header.header_bytes + 12);
  EXPECT_EQ(header.tensors[1].size_bytes, 3U);
}

TEST(SafetensorsHeader, ReadsAFileAsItReadsItsBytes) {
  ScratchFolder const scratch("safetensors_header");
  std::string const text = file_text(example, 15);
  auto const path = scratch.path() / "x.safetensors";
  write_text_file(path, text);
  Header const header = read_header(File::open_for_reading(path));
  EXPECT_EQ(names_of(header), names_of(parse(text)));
  EXPECT_EQ(header.header_bytes, 8 + example.size());
}

struct Allowed {
  std::string what;
  std::string json;
  std::size_t data_bytes;
  std::vector<std::string> names;  ///< in the order of the bytes
};

std::vector<Allowed> const allowed = {
    {.what = "no tensor", .json = "{}", .data_bytes = 0, .names = {}},
    {.what = "padding", .json = "{}      ", .data_bytes = 0, .names = {}},
    {.what = "only metadata",
     .json = R"({"__metadata__":{"a":"b"}})",
     .data_bytes = 0,
     .names = {}},
    {.what = "empty metadata", .json = R"({"__metadata__":{}})", .data_bytes = 0, .names = {}},
    {.what = "null metadata", .json = R"({"__metadata__":null})", .data_bytes = 0, .names = {}},
    {.what = "white space inside the object",
     .json = "{ \n\t\"a\" : {\"dtype\":\"U8\",\r\"shape\": [ ],\"data_offsets\":[0 ,1]} }",
     .data_bytes = 1,
     .names = {"a"}},
    {.what = "fields in another order",
     .json = R"({"a":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}})",
     .data_bytes = 4,
     .names = {"a"}},
    {.what = "scalar",
     .json = one_tensor(R"("F64")", "[]", "[0,8]"),
     .data_bytes = 8,
     .names = {"a"}},
    {.what = "a dimension of zero",
     .json = one_tensor(R"("F64")", "[3,0,5]", "[0,0]"),
     .data_bytes = 0,
     .names = {"a"}},
    {.what = "zero beside the largest dimension",
     .json = one_tensor(R"("F64")", "[9223372036854775807,0,2]", "[0,0]"),
     .data_bytes = 0,
     .names = {"a"}},
    {.what = "64 dimensions",
     .json = one_tensor(R"("U8")",
                        "[1" +
                            [] {
                              std::string s;
                              for (int i = 0; i < 63; ++i) s += ",1";
                              return s;
                            }() +
                            "]",
                        "[0,1]"),
     .data_bytes = 1,
     .names = {"a"}},
    {.what = "two 4-bit elements",
     .json = one_tensor(R"("F4")", "[2]", "[0,1]"),
     .data_bytes = 1,
     .names = {"a"}},
    {.what = "four 6-bit elements",
     .json = one_tensor(R"("F6_E2M3")", "[4]", "[0,3]"),
     .data_bytes = 3,
     .names = {"a"}},
    {.what = "the empty name",
     .json = R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
     .data_bytes = 1,
     .names = {""}},
    {.what = "escapes in a name",
     .json = R"({"\u0061\n\/é":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
     .data_bytes = 1,
     .names = {"a\n/é"}},
    {.what = "an escaped field name",
     .json = R"({"a":{"\u0064type":"U8","shape":[1],"data_offsets":[0,1]}})",
     .data_bytes = 1,
     .names = {"a"}},
    {.what = "text in another order than the bytes",
     .json =
         R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
     .data_bytes = 5,
     .names = {"a", "b"}},
    {.what = "an empty tensor after its successor in the text, at the same byte",
     .json =
         R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
         R"("c":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
     .data_bytes = 2,
     .names = {"a", "b", "c"}},
    {.what = "a name like the reserved one",
     .json = R"({"__metadata":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
     .data_bytes = 1,
     .names = {"__metadata"}},
};

TEST(SafetensorsHeader, AcceptsTheOddCasesThatTheFormatAllows) {
  for (Allowed const& each : allowed) {
    SCOPED_TRACE(each.what);
    auto const error = refusal(file_text(each.json, each.data_bytes));
    ASSERT_FALSE(error) << error->sentence();
    EXPECT_EQ(names_of(parse(file_text(each.json, each.data_bytes))), each.names);
  }
}

TEST(SafetensorsHeader, KnowsEveryDtypeOfTheFormat) {
  for (std::string_view const word :
       {"BOOL",    "F4",          "F6_E2M3",     "F6_E3M2", "U8",  "I8",  "F8_E5M2", "F8_E4M3",
        "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",     "U16", "F16", "BF16",    "I32",
        "U32",     "F32",         "C64",         "F64",     "I64", "U64"}) {
    DType const dtype = dtype_from_name(word).value();
    auto const bytes = static_cast<std::size_t>(bits(dtype));  // of 8 elements
    std::string const json =
        one_tensor(fmt::format("\"{}\"", word), "[8]", fmt::format("[0,{}]", bytes));
    Header const header = parse(file_text(json, bytes));
    bool const in_pairs = dtype == DType::f4;
    EXPECT_EQ(header.tensors.front().dtype, in_pairs ? DType::f4_x2 : dtype) << word;
    EXPECT_EQ(header.tensors.front().shape, std::vector<Index>{in_pairs ? 4 : 8}) << word;
  }
}

TEST(SafetensorsHeader, ReadsF4OfAnOddLastDimensionAsItIs) {
  Header const header = parse(file_text(one_tensor(R"("F4")", "[2,3]", "[0,3]"), 3));
  EXPECT_EQ(header.tensors.front().dtype, DType::f4);
  EXPECT_EQ(header.tensors.front().shape, (std::vector<Index>{2, 3}));
}

TEST(SafetensorsHeader, DoesNotKnowThePackedTypeOfTorchByItsName) {
  auto const error = refusal(file_text(one_tensor(R"("F4_X2")", "[1]", "[0,1]"), 1));
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("the format has no dtype 'F4_X2'"), std::string::npos);
}

TEST(SafetensorsHeader, NamesWithControlCharactersAreShownEscaped) {
  auto const error = refusal(file_text(R"({"\u001b[2J":1})"));
  ASSERT_TRUE(error);
  EXPECT_NE(error->sentence().find("'\\u001b[2J'"), std::string::npos) << error->sentence();
}

TEST(SafetensorsHeader, LongNamesAreCutInMessages) {
  auto const error = refusal(file_text("{\"" + std::string(60'000, 'x') + "\":1}"));
  ASSERT_TRUE(error);
  EXPECT_LT(error->sentence().size(), 500U);
}

TEST(SafetensorsHeader, NinetyThousandTensorsAreReadQuickly) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 91'000; ++i)
    tensors.push_back({fmt::format("model.layers.{}.mlp.experts.{}.gate_proj.weight_scale_inv",
                                   i / 1536, i % 1536),
                       DType::f32,
                       {16, 56}});
  FilePlan const plan = plan_file(tensors, {});
  auto const begin = std::chrono::steady_clock::now();
  Header const header = parse_header(std::as_bytes(std::span(plan.header)), plan.size_bytes, "x");
  std::chrono::duration<double> const seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(header.tensors.size(), tensors.size());
  EXPECT_LT(seconds.count(),
            2.0);  // 0.06 on an idle core; this bound only catches a quadratic step
}

}  // namespace
}  // namespace reshard::safetensors
