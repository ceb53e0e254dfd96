#include "core/plan/compile.hpp"

#include <gtest/gtest.h>

namespace reshard {
namespace {

TEST(AppendSpans, SmallGapsAreReadAlongLargeOnesAreNot) {
  std::vector<ByteDim> const dims = {{3, 1'000'000, 10}, {4, 100, 1000}};
  Region const region{7, 9, 5000, 0, 64, 0, 2};
  std::vector<FileSpan> spans;
  append_spans(region, dims, RegionEnd::source, sieve_gap_bytes, spans);
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[1].file, 7U);
  EXPECT_EQ(spans[1].begin, 1'005'000U);
  EXPECT_EQ(spans[1].end, 1'005'000U + 3 * 100 + 64);
}

TEST(United, TouchingSpansBecomeOne) {
  auto const spans = united({{0, 10, 20}, {0, 20, 30}, {0, 35, 40}, {1, 0, 5}}, 0);
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0].end, 30U);
}

TEST(CompileRound, AReplicatedTensorIsReadOnceAndWrittenFromOnePlace) {
  std::vector<Region> const regions = {
      {0, 0, 0, 4096, 1U << 20, 0, 0}, {0, 1, 0, 64, 1U << 20, 0, 0}, {0, 2, 0, 0, 1U << 20, 0, 0}};
  RoundWork const round = compile_round(regions, {});
  ASSERT_EQ(round.reads.size(), 1U);
  ASSERT_EQ(round.writes.size(), 3U);
  EXPECT_EQ(round.writes[1].at, round.writes[0].at);
  EXPECT_EQ(round.writes[2].at, round.writes[0].at);
  EXPECT_TRUE(round.copies.empty());
  EXPECT_EQ(round.staging_bytes, 1U << 20);
}

TEST(CompileRound, InterleavedHalvesBecomeOneWrite) {
  // Two sources of 8 rows of 16 bytes give the even and the odd rows of one target.
  std::vector<ByteDim> const dims = {{8, 16, 32}, {8, 16, 32}};
  std::vector<Region> const regions = {{0, 0, 0, 0, 16, 0, 1}, {1, 0, 0, 16, 16, 1, 1}};
  RoundWork const round = compile_round(regions, dims);
  ASSERT_EQ(round.writes.size(), 1U);
  EXPECT_EQ(round.writes[0].bytes, 256U);
  EXPECT_EQ(round.reads.size(), 2U);
}

TEST(CompileRound, BytesBetweenItsOwnAreNeverWritten) {
  std::vector<ByteDim> const dims = {{8, 16, 32}};
  std::vector<Region> const regions = {{0, 0, 0, 0, 16, 0, 1}};
  RoundWork const round = compile_round(regions, dims);
  ASSERT_EQ(round.writes.size(), 8U);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(round.writes[i].offset_bytes, 32 * i);
    EXPECT_EQ(round.writes[i].bytes, 16U);
  }
}

}  // namespace
}  // namespace reshard
