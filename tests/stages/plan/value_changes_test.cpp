// Where the target wants other values than the source holds.
#include "stages/plan/value_changes.hpp"

#include <array>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/expect_refused.hpp"

namespace reshard {
namespace {

/// Two tensors of four elements, each in one piece of a blob.
struct Sample {
  Sample(DType source_dtype, DType target_dtype) {
    std::vector<PlainTensor> const tensors{{"a", {4}}, {"b", {4}}};
    model.emplace(tensors, "sample");
    source = catalog("source", source_dtype);
    target = catalog("target", target_dtype);
  }

  Catalog catalog(std::string const& file, DType dtype) const {
    Catalog result;
    result.files = {file};
    result.tensors.resize(2);
    for (std::uint32_t t = 0; t < 2; ++t)
      result.add({0, 100 * t, dtype, t == 0 ? "a" : "b"}, {piece(TensorId(t), 0)}, false);
    return result;
  }

  Piece piece(TensorId tensor, Index offset) const {
    AxisId const axis = model->tensor(tensor).axes.front().axis;
    return {tensor, {{axis, 4, 1, 0, 4, 1}}, {}, offset};
  }

  void change(std::vector<int> source_adds = {}, std::vector<int> target_adds = {}) {
    change_values(*model, source, target, {std::move(source_adds), std::move(target_adds)});
  }
  Blob blob(std::size_t tensor) const {
    return source.blobs[source.tensors[tensor].blob(0)];
  }

  std::optional<Model> model;
  Catalog source;
  Catalog target;
};

TEST(ValueChanges, EqualValuesAreCopied) {
  Sample s(DType::bf16, DType::bf16);
  s.change();
  s.change({1, 0}, {1, 0});
  EXPECT_TRUE(s.source.views.empty());
  EXPECT_EQ(s.source.blobs.size(), 2U);
}

TEST(ValueChanges, AnotherDtypeIsComputedWhileItIsRead) {
  Sample s(DType::f32, DType::bf16);
  s.change();
  ASSERT_EQ(s.source.views.size(), 2U);
  SourceView const& view = s.source.views[1];
  EXPECT_EQ(view.kind, ViewKind::cast);
  EXPECT_EQ(view.stored.file, 0U);
  EXPECT_EQ(view.stored.offset_bytes, 100U);
  EXPECT_EQ(view.stored.dtype, DType::f32);
  EXPECT_EQ(view.dtype, DType::bf16);
  EXPECT_EQ(view.shape, (std::vector<Index>{4}));
  EXPECT_EQ(s.blob(1).dtype, DType::bf16);
  EXPECT_EQ(s.blob(1).offset_bytes, 0U);
  EXPECT_EQ(s.blob(1).file, s.source.real_files() + 1);
}

TEST(ValueChanges, TheDifferenceOfTheAddsIsAdded) {
  for (auto const& [source, target, constant] :
       std::vector<std::array<int, 3>>{{0, 1, 1}, {1, 0, -1}, {2, 5, 3}}) {
    Sample s(DType::bf16, DType::bf16);
    s.change({source, 0}, {target, 0});
    ASSERT_EQ(s.source.views.size(), 1U);
    EXPECT_EQ(s.source.views[0].kind, ViewKind::add);
    EXPECT_EQ(s.source.views[0].constant, constant);
    EXPECT_EQ(s.blob(1).file, 0U);
  }
}

TEST(ValueChanges, AViewReachesToTheLastElementThatIsRead) {
  Sample s(DType::f32, DType::bf16);
  Piece far = s.piece(TensorId{0}, 10);
  far.digits.change(0, [](PieceDigit& digit) { digit.stride = 3; });
  far.copies = {{2, 40}};
  s.source.tensors[0].set(0, far);
  s.change();
  EXPECT_EQ(s.source.views[0].shape, (std::vector<Index>{10 + 3 * 3 + 40 + 1}));
  EXPECT_EQ(s.source.tensors[0].offset(0), 10);
}

TEST(ValueChanges, TensorsOfOneBlobChangeEachForItself) {
  Sample s(DType::bf16, DType::bf16);
  s.source.tensors[1].set_blob(0, 0);
  s.source.tensors[1].set(0, s.piece(TensorId{1}, 4));
  s.change({}, {0, 1});
  ASSERT_EQ(s.source.views.size(), 1U);
  EXPECT_EQ(s.source.tensors[0].blob(0), 0U);
  EXPECT_EQ(s.source.views[0].shape, (std::vector<Index>{8}));
}

TEST(ValueChanges, PiecesOfABlobShareItsView) {
  Sample s(DType::f32, DType::bf16);
  s.source.tensors[0].add(s.piece(TensorId{0}, 4), 0, false);
  s.change();
  EXPECT_EQ(s.source.views.size(), 2U);
  EXPECT_EQ(s.source.tensors[0].blob(0), s.source.tensors[0].blob(1));
  EXPECT_EQ(s.source.views[0].shape, (std::vector<Index>{8}));
}

TEST(ValueChanges, ATensorOfOneSideAloneIsLeftAlone) {
  Sample s(DType::f32, DType::bf16);
  s.target.tensors[0] = {};
  s.source.tensors[1] = {};
  s.change();
  EXPECT_TRUE(s.source.views.empty());
}

TEST(ValueChanges, ValuesThatAreNotComputedFromEachOtherAreRefused) {
  Sample s(DType::i32, DType::f32);
  try {
    s.change();
    FAIL();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_EQ(
        error.sentence(),
        "'a' is I32 in the source and F32 in the target, and values of one are not computed from the other. Correct the map.");
  }
}

TEST(ValueChanges, ComputedValuesAreNotComputedAgain) {
  Sample s(DType::f32, DType::bf16);
  s.change();
  s.target = s.catalog("target", DType::f32);
  test::expect_refused(ErrorKind::usage, "'a' is computed from other values of the source",
                       [&] { s.change(); });
}

}  // namespace
}  // namespace reshard
