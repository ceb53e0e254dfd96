// Small replicas that differ are found, named and counted; what is large, equal or declared a copy
// is not.

#include "stages/verify/replica_check.hpp"

#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

namespace reshard {
namespace {

/// Tensors "w" (4 x 6, held by three files, by one of them with its dimensions swapped and inside a
/// larger tensor) and "big" (1 MiB, held twice).
struct Sample {
  static constexpr Index big = 1 << 18;
  Model model = Model(std::vector<PlainTensor>{{"w", {4, 6}}, {"big", {big}}}, "here");
  Catalog catalog;
  std::vector<std::vector<float>> files;

  Sample() {
    catalog.files = {"a", "b", "c"};
    catalog.tensors.resize(2);
    AxisId const rows = axis(0, 0);
    AxisId const columns = axis(0, 1);
    catalog.add({0, 0, DType::f32, "w"},
                {{{}, {{rows, 4, 1, 0, 4, 6}, {columns, 6, 1, 0, 6, 1}}, {}, 0}}, false);
    catalog.add({1, 4, DType::f32, "w"},
                {{{}, {{rows, 4, 1, 0, 4, 6}, {columns, 6, 1, 0, 6, 1}}, {}, 0}}, false);
    catalog.add({2, 0, DType::f32, "fused"},
                {{{}, {{rows, 4, 1, 0, 4, 2}, {columns, 6, 1, 0, 6, 8}}, {}, 1}}, false);
    for (std::uint32_t const file : {0U, 1U})
      catalog.add({file, 100, DType::f32, "big"},
                  {{TensorId{1}, {{axis(1, 0), big, 1, 0, big, 1}}, {}, 0}}, false);
    files.resize(3, std::vector<float>(25 + big, -1));
    for (std::size_t i = 0; i < 4; ++i)
      for (std::size_t j = 0; j < 6; ++j)
        files[0][6 * i + j] = files[1][1 + 6 * i + j] = files[2][1 + 2 * i + 8 * j] =
            static_cast<float>(10 * i + j);
  }

  AxisId axis(std::size_t tensor, std::size_t d) const {
    return model.tensors()[tensor].axes[d].axis;
  }

  ReplicaFindings compare() const {
    return compare_small_replicas(
        model, catalog,
        [&](std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) {
          ASSERT_LT(into.size(), largest_small_replica_bytes);
          std::memcpy(into.data(), std::as_bytes(std::span(files[file])).data() + offset,
                      into.size());
        },
        Comm::world());
  }
};

/// "big" of a file declared a copy of that of another.
struct CopySample : Sample {
  CopySample() {
    catalog.tensors[1].set_copy(1, true);
    for (std::size_t i = 0; i < static_cast<std::size_t>(big); ++i)
      files[0][25 + i] = files[1][25 + i] = static_cast<float>(i);
  }

  ReplicaFindings copies() const {
    return compare_copies(
        model, catalog,
        [&](std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) {
          std::memcpy(into.data(), std::as_bytes(std::span(files[file])).data() + offset,
                      into.size());
        },
        Comm::world());
  }
};

bool says(std::string const& sentence, std::string_view part) {
  return sentence.find(part) != std::string::npos;
}

TEST(Replicas, EqualOnesPass) {
  ReplicaFindings const found = Sample().compare();
  EXPECT_EQ(found.compared, 2U);
  EXPECT_TRUE(found.faults.empty());
}

TEST(Replicas, WhatDiffersIsNamedAndCounted) {
  Sample sample;
  sample.files[2][1 + 2 * 1 + 8 * 2] = 0.5;  // row 1, column 2
  sample.files[2][1 + 2 * 3 + 8 * 5] = 0.5;  // row 3, column 5
  ReplicaFindings const found = sample.compare();
  ASSERT_EQ(found.faults.size(), 1U);
  std::string const& said = found.faults.front();
  for (std::string_view const part : {"'w'", "\"w\" in ", "\"fused\" in c",
                                      "2 of 24 elements differ", "first at [1, 2]", "(12 and 0.5)"})
    EXPECT_TRUE(says(said, part)) << said;
}

TEST(Replicas, EveryReplicaIsLookedAt) {
  for (std::size_t file = 0; file < 3; ++file) {
    Sample sample;
    sample.files[file][1 + 8 * 2] += 1;
    EXPECT_FALSE(sample.compare().faults.empty()) << file;
  }
}

TEST(Replicas, LargeOnesAndWhatLiesBesideThemAreNotLookedAt) {
  Sample sample;
  sample.files[0][25 + 17] = 3;  // in "big"
  sample.files[1][0] = 3;        // in front of "w"
  sample.files[2][0] = 3;        // between the elements of "w"
  EXPECT_TRUE(sample.compare().faults.empty());
}

TEST(Replicas, DeclaredCopiesAreNone) {
  Sample sample;
  for (std::size_t const i : {1U, 2U}) sample.catalog.tensors[0].set_copy(i, true);
  sample.files[2][1 + 8 * 2] += 1;
  ReplicaFindings const found = sample.compare();
  EXPECT_EQ(found.compared, 0U);
  EXPECT_TRUE(found.faults.empty());
}

TEST(Copies, EqualOnesPassWhateverTheirSize) {
  EXPECT_FALSE(has_copies(Sample().catalog));
  CopySample const sample;
  EXPECT_TRUE(has_copies(sample.catalog));
  EXPECT_EQ(sample.copies().compared, 1U);
  EXPECT_TRUE(sample.copies().faults.empty());
}

TEST(Copies, WhatDiffersIsCountedOverAllRanks) {
  CopySample sample;
  sample.files[1][25 + 17] = -1;
  sample.files[1][25 + CopySample::big - 1] = -1;
  ReplicaFindings const found = sample.copies();
  ASSERT_EQ(found.faults.size(), 1U);
  for (std::string_view const part :
       {"\"big\" in b should be a copy of \"big\"", "2 of 262144 elements differ, first number 17"})
    EXPECT_TRUE(says(found.faults.front(), part)) << found.faults.front();
}

TEST(Copies, ThoseInAnotherOrderAreCompared) {
  CopySample sample;
  for (std::size_t const i : {1U, 2U})
    sample.catalog.tensors[0].set_copy(i, true);  // "fused" has its dimensions swapped
  EXPECT_EQ(sample.copies().compared, 3U);
  EXPECT_TRUE(sample.copies().faults.empty());
  sample.files[2][1 + 2 * 1 + 8 * 2] = 0.5;  // row 1, column 2
  ReplicaFindings const found = sample.copies();
  ASSERT_EQ(found.faults.size(), 1U);
  EXPECT_TRUE(says(found.faults.front(),
                   "\"fused\" in c should be a copy of \"w\", but 1 of 24 "
                   "elements differ, first at [1, 2] (12 and 0.5)"))
      << found.faults.front();
}

TEST(Copies, ThoseThatAreCutOtherwiseAreCompared) {
  CopySample sample;
  AxisId const rows = sample.axis(0, 0);
  AxisId const columns = sample.axis(0, 1);
  for (Index const half : {0, 1})  // the rows of "w" in file b, in two
    sample.catalog.add({1, 4 + 48 * static_cast<std::uint64_t>(half), DType::f32, "half"},
                       {{{}, {{rows, 4, 1, 2 * half, 2, 6}, {columns, 6, 1, 0, 6, 1}}, {}, 0}},
                       true);
  EXPECT_EQ(sample.copies().compared, 3U);
  EXPECT_TRUE(sample.copies().faults.empty());
  sample.files[1][1 + 6 * 3 + 5] += 1;
  EXPECT_EQ(sample.copies().faults.size(), 1U);
}

TEST(Copies, StateIsNot) {
  CopySample sample;
  sample.files[1][25 + 17] = -1;
  sample.model.note_states(std::vector<PlainState>{{TensorId{0}, "exp_avg", TensorId{1}}});
  EXPECT_EQ(sample.copies().compared, 0U);
}

TEST(Copies, WhatIsKnownToBeEqualIsNotRead) {
  CopySample sample;
  sample.files[1][25 + 17] = -1;
  ReplicaFindings const found = compare_copies(
      sample.model, sample.catalog,
      [](std::uint32_t, std::uint64_t, std::span<std::byte>) { FAIL() << "read"; }, Comm::world(),
      [](CopySpan const& a, CopySpan const& b) {
        return a == CopySpan{0, 100, 1 << 20} && b == CopySpan{1, 100, 1 << 20};
      });
  EXPECT_EQ(found.compared, 1U);
  EXPECT_TRUE(found.faults.empty());
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
