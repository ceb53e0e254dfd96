#include "core/plan/compile.hpp"

#include <algorithm>

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
  auto const spans =
      united(std::vector<FileSpan>{{0, 10, 20}, {0, 20, 30}, {0, 35, 40}, {1, 0, 5}});
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

/// Of a long stretch, a short one, and one that is read in pieces.
TEST(CompileRound, LongStretchesAreWholeBlocksOfMemory) {
  constexpr std::uint64_t mib = 1U << 20;
  std::vector<ByteDim> const dims = {{512, 8192, 4096}};
  std::vector<Region> const regions = {{0, 0, 77, 100, mib, 0, 0},
                                       {0, 1, 2 * mib, 5000, 300, 0, 0},
                                       {1, 2, 40'001, 12'345, 4096, 0, 1}};
  for (std::uint64_t const io : {1U, 4096U}) {
    RoundWork const round = compile_round(regions, dims, {io});
    ASSERT_EQ(round.writes.size(), 3U);
    for (Extent const& write : round.writes) {
      bool const in_place = io > 1 && write.bytes >= 16 * io;
      std::uint64_t const unit = in_place ? io : staging_alignment;
      EXPECT_EQ((write.at - (in_place ? write.offset_bytes : 0)) % unit, 0U) << write.offset_bytes;
    }
    Extent const& pieces = round.reads.back();
    ASSERT_EQ(pieces.file, 1U);
    EXPECT_EQ((pieces.at - (io > 1 ? pieces.offset_bytes : 0)) % std::max(io, staging_alignment),
              0U);
    EXPECT_LE(round.staging_bytes, staging_bound(regions, dims, {io}));
    EXPECT_EQ(round.staging_bytes % staging_alignment, 0U);
  }
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
