#include "core/plan/equal/unread.hpp"

#include <string_view>

#include <gtest/gtest.h>

#include "core/base/hash/crc32.hpp"
#include "core/plan/cells/schedule.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t kib = 1024;

/// A plan in which each tensor is one run of bytes of a source file.
struct MadePlan {
  Plan plan;

  MadePlan() { plan.clones = {4096, 2}; }

  /// Adds a tensor of one cell for each of the runs.
  void add(std::vector<Region> const& runs) {
    DigestId const digest{static_cast<std::uint32_t>(plan.tensor_bytes.size())};
    plan.tensor_bytes.push_back(0);
    for (Region const& run : runs) {
      CellShape cell;
      cell.staging_bytes = cell.source_bytes = cell.target_bytes = run.run_bytes;
      DigestRegion const of{run.src_file,
                            digest,
                            run.src_offset_bytes,
                            plan.tensor_bytes.back(),
                            run.run_bytes,
                            0,
                            0};
      plan.tensor_bytes.back() += run.run_bytes;
      plan.add(cell, std::span(&run, 1), std::span(&of, 1));
    }
  }

  UnreadBytes leave(UnreadTerms terms) {
    terms.recorded.resize(plan.tensor_bytes.size(), true);
    return leave_unread(plan, terms);
  }
};

Region run_of(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
  return {0, 1, from, to, bytes, 0, 0};
}

std::vector<RoundWork> rounds_of(Plan const& plan) {
  std::vector<RoundWork> rounds;
  auto const next = direct_rounds(plan, {0, plan.cells.size()}, 1U << 20);
  while (auto round = next()) rounds.push_back(*std::move(round));
  return rounds;
}

TEST(Unread, ARecordedTensorIsClonedAndNotRead) {
  MadePlan made;
  made.add({run_of(8192, 4096, 128 * kib)});
  UnreadBytes const unread = made.leave({});
  ASSERT_EQ(unread.spans.size(), 1U);
  EXPECT_EQ(unread.spans[0].begin, 4096U);
  EXPECT_EQ(unread.spans[0].end, 4096 + 128 * kib);
  EXPECT_EQ(made.plan.cells[0].staging_bytes, 0U);
  auto const rounds = rounds_of(made.plan);
  ASSERT_EQ(rounds.size(), 1U);
  EXPECT_TRUE(rounds[0].reads.empty() && rounds[0].writes.empty() && rounds[0].digests.empty());
  EXPECT_EQ(rounds[0].staging_bytes, 0U);
  EXPECT_EQ(rounds[0].unread, (std::vector<CloneExtent>{{0, 8192, 1, 4096, 128 * kib}}));
  EXPECT_EQ(rounds[0].recorded, (std::vector<DigestShare>{{DigestId{0}, 0, 128 * kib}}));
}

TEST(Unread, OthersOfTheRoundAreReadAsEver) {
  MadePlan made;
  made.add({run_of(0, 0, 128 * kib)});
  made.add({run_of(512 * kib, 512 * kib + 64, 128 * kib)});
  made.leave({});
  EXPECT_TRUE(made.plan.unread[0]);
  EXPECT_FALSE(made.plan.unread[1]);
  auto const rounds = rounds_of(made.plan);
  ASSERT_EQ(rounds.size(), 1U);
  EXPECT_EQ(rounds[0].unread.size(), 1U);
  ASSERT_EQ(rounds[0].reads.size(), 1U);
  EXPECT_EQ(rounds[0].reads[0].offset_bytes, 512 * kib);
  EXPECT_EQ(rounds[0].digests.size(), 1U);
}

TEST(Unread, ATensorIsReadForAnyByteThatCannotBeCloned) {
  for (Region const& second :
       {run_of(1024 * kib + 64, 1024 * kib, 128 * kib), run_of(1024 * kib, 1024 * kib, 100'000),
        run_of(1024 * kib, 1024 * kib, 32 * kib)}) {
    MadePlan made;
    made.add({run_of(0, 0, 128 * kib), second});
    EXPECT_TRUE(made.leave({}).spans.empty());
    EXPECT_TRUE(made.plan.unread.empty());
    EXPECT_EQ(made.plan.cells[0].staging_bytes, 128 * kib);
  }
  MadePlan computed;
  computed.add({{2, 1, 0, 0, 128 * kib, 0, 0}});
  EXPECT_TRUE(computed.leave({}).spans.empty());
}

TEST(Unread, SmallCellsThatContinueEachOtherAreOneStretch) {
  MadePlan made;
  made.add({run_of(0, 0, 64 * kib), run_of(64 * kib, 64 * kib, 8 * kib)});
  EXPECT_EQ(made.leave({}).spans.size(), 1U);
}

TEST(Unread, WhatIsNotRecordedOrIsLookedAtIsRead) {
  MadePlan made;
  made.add({run_of(0, 0, 128 * kib)});
  made.add({run_of(256 * kib, 256 * kib, 128 * kib)});
  made.plan.checks = {{StateRule::not_negative, TensorId{1}, TensorId{0}, DType::f32}};
  EXPECT_TRUE(made.leave({.recorded = {false, true}, .known = {}, .wanted = {}}).spans.empty());
}

std::span<std::byte const> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Unread, SumsOfWholeSourceRecordsGiveThoseOfTheTarget) {
  std::string const text(256 * kib, 'x');
  std::string const second(128 * kib, 'y');
  MadePlan made;
  made.add({run_of(0, 4096, 128 * kib)});
  made.add({run_of(256 * kib, 4096 + 128 * kib, 128 * kib)});
  std::string const first = text.substr(0, 128 * kib);
  UnreadBytes const unread =
      made.leave({{},
                  {{0, 0, 128 * kib, crc32(bytes_of(first))},
                   {0, 256 * kib, 128 * kib, crc32(bytes_of(second))}},
                  {{1, 4096, 4096 + 256 * kib}, {1, 1024 * kib, 1028 * kib}}});
  EXPECT_EQ(unread.spans.size(), 1U);
  ASSERT_EQ(unread.crc32.size(), 2U);
  EXPECT_EQ(unread.crc32[0], crc32(bytes_of(first + second)));
  EXPECT_FALSE(unread.crc32[1]);
}

TEST(Unread, ASumThatDoesNotFollowKeepsAllItsTensors) {
  // One record of the target has both tensors, and of the second one no sum is known.
  std::vector<SummedBytes> const known = {{0, 0, 128 * kib, 1}};
  MadePlan made;
  made.add({run_of(0, 4096, 128 * kib)});
  made.add({run_of(256 * kib, 4096 + 128 * kib, 128 * kib)});
  made.add({run_of(0, 1024 * kib, 128 * kib)});
  UnreadBytes const unread = made.leave(
      {{}, known, {{1, 4096, 4096 + 256 * kib}, {1, 1024 * kib, 1024 * kib + 128 * kib}}});
  ASSERT_EQ(unread.spans.size(), 1U);
  EXPECT_EQ(unread.spans[0].begin, 1024 * kib);
  EXPECT_EQ(made.plan.unread, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(unread.crc32[1], 1U);
}

TEST(Unread, APartOfARecordHasNoKnownSum) {
  MadePlan made;
  made.add({run_of(0, 4096, 128 * kib)});
  std::vector<SummedBytes> const known = {{0, 0, 256 * kib, 1}};
  EXPECT_TRUE(made.leave({{}, known, {{1, 4096, 4096 + 128 * kib}}}).spans.empty());
}

TEST(Unread, RoundsEndAfterAboutAGibibyte) {
  MadePlan made;
  for (std::uint64_t i = 0; i < 8; ++i)
    made.add({{0, 1, i << 30U, i << 30U, std::uint64_t{600} << 20U, 0, 0}});
  made.leave({});
  EXPECT_EQ(rounds_of(made.plan).size(), 4U);
}

}  // namespace
}  // namespace reshard
