#include "core/plan/views/source_view.hpp"

#include <functional>

#include <gtest/gtest.h>

#include "core/plan/catalog.hpp"

namespace reshard {
namespace {

StoredPlace place(DType dtype, std::vector<Index> shape) {
  return {.file = 0, .offset_bytes = 0, .dtype = dtype, .shape = std::move(shape)};
}

SourceView cast_view() {
  return {.kind = ViewKind::cast,
          .name = "norm",
          .stored = place(DType::bf16, {8}),
          .dtype = DType::f32,
          .shape = {8}};
}

/// gpt-oss: [experts, rows, groups, 16] bytes for [experts, rows, 32 * groups] values.
SourceView mxfp4_view() {
  SourceView view{.kind = ViewKind::dequantise,
                  .name = "experts.blocks",
                  .stored = place(DType::u8, {4, 6, 3, 16}),
                  .shape = {4, 6, 96}};
  view.scheme = {.codes = quant::CodeFormat::e2m1, .block_rows = 1, .block_columns = 32};
  view.scale = place(DType::u8, {4, 6, 3});
  return view;
}

SourceView nvfp4_view() {
  SourceView view{.kind = ViewKind::dequantise,
                  .name = "proj.weight",
                  .stored = place(DType::u8, {10, 24}),
                  .shape = {10, 48}};
  view.scheme = {.codes = quant::CodeFormat::e2m1,
                 .block_rows = 1,
                 .block_columns = 16,
                 .second = quant::SecondScale::times};
  view.scale = place(DType::f8_e4m3, {10, 3});
  view.second = place(DType::f32, {});
  return view;
}

TEST(Catalog, AViewIsAFileBehindTheRealOnes) {
  Catalog catalog;
  catalog.files = {"a.safetensors", "b.safetensors"};
  SourceView second = mxfp4_view();
  second.stored.file = 1;
  EXPECT_EQ(catalog.add_view(cast_view()), 2U);
  EXPECT_EQ(catalog.add_view(second), 3U);
  EXPECT_EQ(catalog.real_files(), 2U);
  EXPECT_EQ(catalog.files[2], "a.safetensors: 'norm' as F32");
  EXPECT_EQ(catalog.files[3], "b.safetensors: 'experts.blocks' as BF16");
  EXPECT_EQ(elements_of(catalog.views[1]), 4 * 6 * 96);
}

TEST(Catalog, AViewOfAViewIsOurBug) {
  Catalog catalog;
  catalog.files = {"a"};
  SourceView view = cast_view();
  view.stored.file = catalog.add_view(cast_view());
  EXPECT_THROW(catalog.add_view(view), Error);
}

struct Mistake {
  char const* what;
  std::function<void(SourceView&)> make;
  ErrorKind kind;
  std::vector<std::string> words;
};

void expect_refused(SourceView view, Mistake const& mistake) {
  EXPECT_NO_THROW(check_view(view, "m.safetensors"));
  mistake.make(view);
  try {
    check_view(view, "m.safetensors");
    ADD_FAILURE() << mistake.what << " was accepted";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), mistake.kind) << mistake.what;
    for (std::string const& word : mistake.words)
      EXPECT_NE(error.sentence().find(word), std::string::npos)
          << word << " in: " << error.sentence();
  }
}

TEST(CheckView, RefusesWhatCannotBeConverted) {
  expect_refused(cast_view(), {"an integer",
                               [](SourceView& v) { v.stored.dtype = DType::i32; },
                               ErrorKind::source,
                               {"m.safetensors", "'norm'", "I32"}});
  expect_refused(
      cast_view(),
      {"8 bits", [](SourceView& v) { v.dtype = DType::f8_e4m3; }, ErrorKind::source, {"F8_E4M3"}});
  expect_refused(cast_view(), {"another shape",
                               [](SourceView& v) {
                                 v.shape = {2, 4};
                               },
                               ErrorKind::internal,
                               {"[2, 4]", "[8]"}});
}

TEST(CheckView, NamesTheTensorWhoseSizeDisagrees) {
  std::vector<Mistake> const mistakes{
      {"a scale too few",
       [](SourceView& v) {
         v.scale->shape = {4, 6, 2};
       },
       ErrorKind::source,
       {"'experts.blocks'", "scale", "[4, 6, 2]", "[4, 6, 3]"}},
      {"a code too few",
       [](SourceView& v) {
         v.stored.shape = {4, 6, 48 - 1};
       },
       ErrorKind::source,
       {"codes", "[4, 6, 47]", "24 rows of 48 bytes"}},
      {"a transposed scale",
       [](SourceView& v) {
         v.scale->shape = {3, 6, 4};
       },
       ErrorKind::source,
       {"[3, 6, 4]", "[4, 6, 3]"}},
      {"transposed codes",
       [](SourceView& v) {
         v.stored.shape = {48, 24};
       },
       ErrorKind::source,
       {"[48, 24]"}},
      {"no scale", [](SourceView& v) { v.scale.reset(); }, ErrorKind::source, {"no scale"}},
      {"a second scale",
       [](SourceView& v) { v.second = v.scale; },
       ErrorKind::source,
       {"has a second scale"}},
      {"an unknown scale",
       [](SourceView& v) { v.scale->dtype = DType::i32; },
       ErrorKind::source,
       {"I32"}},
      {"another target",
       [](SourceView& v) { v.dtype = DType::f32; },
       ErrorKind::usage,
       {"F32", "BF16"}},
      {"zero points",
       [](SourceView& v) { v.zero_points = place(DType::i8, {4}); },
       ErrorKind::source,
       {"zero points", "[4]", "[4, 6, 3]"}},
  };
  for (Mistake const& mistake : mistakes) expect_refused(mxfp4_view(), mistake);
  expect_refused(nvfp4_view(), {"no second scale",
                                [](SourceView& v) { v.second.reset(); },
                                ErrorKind::source,
                                {"lacks a second scale"}});
  expect_refused(nvfp4_view(), {"two of them",
                                [](SourceView& v) { v.second->shape = {2}; },
                                ErrorKind::source,
                                {"second scale", "[2]", "1 number"}});
  expect_refused(nvfp4_view(), {"a factor too few",
                                [](SourceView& v) {
                                  v.factors = StoredPlace{.dtype = DType::bf16, .shape = {3}};
                                },
                                ErrorKind::source,
                                {"factors are BF16 [3]"}});
  expect_refused(nvfp4_view(), {"groups of another dtype",
                                [](SourceView& v) {
                                  v.groups =
                                      StoredPlace{.dtype = DType::i64, .shape = {v.shape.back()}};
                                },
                                ErrorKind::source,
                                {"groups are I64"}});
}

TEST(CheckView, OneScaleMayServeAStackAndOneMayServeEachMatrix) {
  SourceView view{.kind = ViewKind::dequantise,
                  .name = "experts",
                  .stored = place(DType::f8_e4m3, {4, 6, 8}),
                  .shape = {4, 6, 8}};
  view.scheme = {.codes = quant::CodeFormat::e4m3, .block_rows = 0, .block_columns = 0};
  for (std::vector<Index> const& shape :
       std::vector<std::vector<Index>>{{}, {1}, {1, 1, 1}, {4}, {4, 1, 1}}) {
    view.scale = place(DType::f32, shape);
    EXPECT_NO_THROW(check_view(view, "m"));
  }
  EXPECT_EQ(dequantiser_of(view).shape(), (quant::MatrixShape{4, 6, 8}));
  view.scale = place(DType::f32, {1});
  EXPECT_EQ(dequantiser_of(view).shape(), (quant::MatrixShape{1, 24, 8}));
  view.scale = place(DType::f32, {6});
  EXPECT_THROW(check_view(view, "m"), Error);
}

TEST(CheckView, ABlockScaleOfAStackCountsTheRowsOfEachMatrix) {
  SourceView view{.kind = ViewKind::dequantise,
                  .name = "experts",
                  .stored = place(DType::f8_e4m3, {3, 130, 200}),
                  .shape = {3, 130, 200}};
  view.scheme = {.codes = quant::CodeFormat::e4m3, .block_rows = 128, .block_columns = 128};
  view.scale = place(DType::f32, {3, 2, 2});
  EXPECT_NO_THROW(check_view(view, "m"));
  view.scale = place(DType::f32, {4, 2});  // of 390 rows counted through
  EXPECT_THROW(check_view(view, "m"), Error);
}

TEST(SourceView, AValueThatADtypeLacksIsNamed) {
  auto const refusal = [](SourceView const& view) {
    try {
      fail_inexact(view, "m.safetensors", 3, 0.1);
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::source);
      return error.sentence();
    }
  };
  EXPECT_EQ(refusal(cast_view()),
            "m.safetensors: 'norm': element 3 is 0.1, which F32 cannot hold. Keep the tensor in "
            "BF16.");
  SourceView view = cast_view();
  view.kind = ViewKind::add;
  view.constant = 1;
  EXPECT_EQ(refusal(view),
            "m.safetensors: 'norm': element 3 is 0.1, and 0.1 + (1) cannot be stored in F32. Save "
            "this tensor in F32, or choose a target that stores norms like the source.");
  view.kind = ViewKind::rows;
  view.dtype = DType::f16;
  EXPECT_EQ(
      refusal(view),
      "m.safetensors: 'norm': the mean of column 3 of its rows is 0.1, and the largest number "
      "of F16 is 65504. Choose another target.dtype, or target.new_rows = \"zero\".");
}

TEST(SourceView, AnAdapterIsMergedIntoFloats) {
  SourceView view{.kind = ViewKind::merge,
                  .name = "proj",
                  .stored = place(DType::i8, {4, 4}),
                  .dtype = DType::i8,
                  .shape = {4, 4}};
  auto merged = std::make_shared<MergedWeight>();
  merged->pairs = std::make_shared<std::vector<LowRankPair> const>();
  view.merged = merged;
  try {
    check_view(view, "m");
    FAIL();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    EXPECT_NE(error.sentence().find(
                  "'proj' is I8: an adapter is merged into weights of F32, BF16 or F16 only."),
              std::string::npos)
        << error.sentence();
  }
}

}  // namespace
}  // namespace reshard
