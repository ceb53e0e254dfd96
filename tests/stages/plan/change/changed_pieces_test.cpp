#include "stages/plan/change/changed_pieces.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace reshard {
namespace {

/// [layers 2, experts 4, columns 3] in one stored tensor.
struct Sample {
  Sample() {
    catalog.files = {"model"};
    catalog.tensors.resize(1);
    catalog.tensors[0].set_tensor(TensorId(0));
    Piece piece;
    piece.digits = {{.axis = layer, .mod = 2, .count = 2, .stride = 12},
                    {.axis = expert, .mod = 4, .count = 4, .stride = 3},
                    {.axis = column, .mod = 3, .count = 3, .stride = 1}};
    catalog.add(Blob(0, 0, DType::f32, "w"), std::vector{piece}, false);
  }

  std::vector<PlainTensor> plain{{"w", std::vector<Index>{2, 4, 3}}};
  Model model{plain, "config.json"};
  AxisId layer = model.tensors()[0].axes[0].axis;
  AxisId expert = model.tensors()[0].axes[1].axis;
  AxisId column = model.tensors()[0].axes[2].axis;
  Catalog catalog;
};

struct Part {
  Index offset, first, count, mod;
  friend bool operator==(Part const&, Part const&) = default;
};

/// Of each piece: its offset, and the digit of an axis.
std::vector<Part> parts(Sample const& sample, AxisId axis) {
  std::vector<Part> result;
  for (Piece const& piece : sample.catalog.tensors[0].made())
    for (PieceDigit const& digit : piece.digits)
      if (digit.axis == axis) result.push_back({piece.offset, digit.first, digit.count, digit.mod});
  return result;
}

TEST(ChangedPieces, NeighboursStayOnePiece) {
  Sample sample;
  select_indices(sample.model, sample.catalog, sample.expert, {0, 1, 3});
  EXPECT_EQ(parts(sample, sample.expert), (std::vector<Part>{{0, 0, 2, 3}, {9, 2, 1, 3}}));
  EXPECT_EQ(parts(sample, sample.layer), (std::vector<Part>{{0, 0, 2, 2}, {9, 0, 2, 2}}));
}

TEST(ChangedPieces, NothingIsLeftOfOthers) {
  Sample sample;
  select_indices(sample.model, sample.catalog, sample.layer, {});
  EXPECT_TRUE(sample.catalog.tensors[0].empty());
}

TEST(ChangedPieces, EachIndexOfAnotherAxisHasItsList) {
  Sample sample;
  select_indices_by(sample.model, sample.catalog, sample.layer, sample.expert, {{1, 2}, {0, 3}}, 2);
  EXPECT_EQ(parts(sample, sample.expert),
            (std::vector<Part>{{3, 0, 2, 2}, {12, 0, 1, 2}, {21, 1, 1, 2}}));
  EXPECT_EQ(parts(sample, sample.layer),
            (std::vector<Part>{{3, 0, 1, 2}, {12, 1, 1, 2}, {21, 1, 1, 2}}));
}

TEST(ChangedPieces, AWiderAxisKeepsThem) {
  Sample sample;
  widen(sample.model, sample.catalog, sample.layer, 5);
  EXPECT_EQ(parts(sample, sample.layer), (std::vector<Part>{{0, 0, 2, 5}}));
}

TEST(ChangedPieces, BlocksOfIndicesAreRefused) {
  Sample sample;
  Piece piece;
  piece.digits = {{.axis = sample.expert, .mod = 4, .div = 2, .count = 2, .stride = 1}};
  sample.catalog.add(Blob(0, 96, DType::f32, "scale"), std::vector{piece}, false);
  try {
    select_indices(sample.model, sample.catalog, sample.expert, {0, 1});
    ADD_FAILURE();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(error.sentence().find("are stored in parts"), std::string::npos);
  }
}

}  // namespace
}  // namespace reshard
