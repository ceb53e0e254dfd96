// Rows behind a vocabulary: new tokens are told apart from padding that Megatron has trained.

#include "stages/verify/rows_behind.hpp"

#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

namespace reshard {
namespace {

/// Rows 10 to 39 of an embedding and its output layer: those of the first in two files, with
/// something else in front; rows of 8 bytes.
struct Padded {
  Model model = Model(std::vector<PlainTensor>{{"embed", {40, 4}}, {"head", {40, 4}}}, "here");
  std::vector<std::vector<std::uint64_t>> files{std::vector<std::uint64_t>(23, 0),
                                                std::vector<std::uint64_t>(10, 0),
                                                std::vector<std::uint64_t>(30, 0)};
  std::vector<PaddingRows> rows{{TensorId{0}, 0, 24, DType::bf16, 10, 20, 8},
                                {TensorId{0}, 1, 0, DType::bf16, 30, 10, 8},
                                {TensorId{1}, 2, 0, DType::bf16, 10, 30, 8}};

  Padded() { files[0][0] = files[0][2] = 7; }

  void fill(Index row) {
    auto const at = static_cast<std::size_t>(row);
    (row < 30 ? files[0][at - 10 + 3] : files[1][at - 30]) = 1;
  }
  void fill_head(Index row) { files[2][static_cast<std::size_t>(row - 10)] = 1; }

  RowsBehind look() const {
    return look_behind_vocabulary(
        model, rows,
        [&](std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) {
          auto const bytes = std::as_bytes(std::span(files[file]));
          ASSERT_LE(offset + into.size(), bytes.size());
          std::memcpy(into.data(), bytes.data() + offset, into.size());
        },
        Comm::world());
  }
};

TEST(RowsBehind, OfZerosAreNothingToSay) {
  RowsBehind const found = Padded().look();
  EXPECT_TRUE(found.warnings.empty());
  EXPECT_TRUE(found.notes.empty());
}

TEST(RowsBehind, NewTokensAreCountedAndNamed) {
  Padded padded;
  for (Index const row : {10, 11, 12, 29, 30, 35}) {
    padded.fill(row);
    padded.fill_head(row);
  }
  RowsBehind const found = padded.look();
  ASSERT_EQ(found.warnings.size(), 1U);
  EXPECT_EQ(found.warnings.front(),
            "'embed', 'head': 6 of the 30 rows behind the first 10 are not zero (rows 10 to 12, 29 "
            "to 30, 35), and the target does not get them. If they are tokens that vocab_size does "
            "not count, set model.true_vocab_size = 36");
  EXPECT_TRUE(found.notes.empty());
}

TEST(RowsBehind, ThatAllHaveValuesAreTrainedPadding) {
  Padded padded;
  for (Index row = 10; row < 40; ++row) padded.fill(row);
  padded.fill_head(39);
  RowsBehind const found = padded.look();
  ASSERT_EQ(found.notes.size(), 1U);
  EXPECT_EQ(found.notes.front(),
            "'embed': 30 rows behind the first 10 have values, as Megatron trains the rows that it "
            "pads with; the target does not get them");
  ASSERT_EQ(found.warnings.size(), 1U);
  EXPECT_EQ(found.warnings.front().find("'head': 1 of the 30 rows behind the first 10 are not zero "
                                        "(row 39)"),
            0U)
      << found.warnings.front();
}

TEST(RowsBehind, AreReadInSlices) {
  Model const model(std::vector<PlainTensor>{{"embed", {100, 4}}}, "here");
  constexpr std::uint64_t row_bytes = std::uint64_t{3} << 20;
  std::vector<PaddingRows> const rows{{TensorId{0}, 0, 0, DType::bf16, 50, 50, row_bytes}};
  RowsBehind const found = look_behind_vocabulary(
      model, rows,
      [&](std::uint32_t, std::uint64_t offset, std::span<std::byte> into) {
        ASSERT_EQ(into.size(), row_bytes);
        std::ranges::fill(into,
                          std::byte{offset == 49 * row_bytes ? std::uint8_t{1} : std::uint8_t{0}});
      },
      Comm::world());
  ASSERT_EQ(found.warnings.size(), 1U);
  EXPECT_NE(
      found.warnings.front().find("1 of the 50 rows behind the first 50 are not zero (row 99)"),
      std::string::npos)
      << found.warnings.front();
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
