#include "pipeline/journal/journal_entries.hpp"

#include <gtest/gtest.h>

namespace reshard {
namespace {

JournalEntry entry(std::size_t begin, std::size_t end, std::vector<SumShare> digests) {
  JournalEntry entry;
  entry.bytes = end - begin;
  entry.cells = {{begin, end}};
  entry.digests = std::move(digests);
  return entry;
}

Journal journal(std::string boot, std::size_t entries, std::size_t synced, bool lockstep = false) {
  Journal made{.boot_id = std::move(boot),
               .ranks = 2,
               .lockstep = lockstep,
               .entries = {},
               .synced = synced};
  for (std::size_t i = 0; i < entries; ++i) made.entries.push_back(entry(i, i + 1, {}));
  return made;
}

bool alive(std::string const& boot) { return boot == "now"; }

TEST(Joined, CellsAreSortedAndJoinedAndSumsCombined) {
  std::vector<JournalEntry> const entries{entry(4, 6, {{1, 0b110}}),
                                          entry(0, 2, {{1, 0b011}, {2, 9}}), entry(2, 4, {{2, 9}})};
  JournalEntry const all = joined(entries);
  EXPECT_EQ(all.bytes, 6U);
  EXPECT_EQ(all.cells, (std::vector<CellRange>{{0, 6}}));
  EXPECT_EQ(all.digests, (std::vector<SumShare>{{1, 0b101}}));  // what is zero again is left out
}

TEST(Joined, CountsAreAdded) {
  std::vector<JournalEntry> entries{entry(0, 2, {}), entry(2, 4, {})};
  for (auto const list : {&JournalEntry::covered, &JournalEntry::digested, &JournalEntry::written})
    for (JournalEntry& one : entries) one.*list = {{3, UINT64_MAX}, {5, 4}};
  for (JournalEntry& one : entries) one.sources = {{3, 0b101}};
  entries.back().sources.push_back({4, 0b1});
  JournalEntry const all = joined(entries);
  for (auto const list : {&JournalEntry::covered, &JournalEntry::digested, &JournalEntry::written})
    EXPECT_EQ(all.*list, (std::vector<SumShare>{{3, UINT64_MAX - 1}, {5, 8}}));
  EXPECT_EQ(all.sources, (std::vector<SumShare>{{4, 0b1}}));
}

TEST(Joined, GapsStay) {
  std::vector<JournalEntry> const entries{entry(5, 6, {}), entry(0, 2, {}), entry(3, 3, {})};
  EXPECT_EQ(joined(entries).cells, (std::vector<CellRange>{{0, 2}, {5, 6}}));
}

TEST(Joined, WhatIsSaidTwiceCountsOnce) {
  std::vector<JournalEntry> const entries{entry(0, 4, {{1, 5}}), entry(0, 4, {{1, 5}}),
                                          entry(3, 6, {{1, 9}}), entry(4, 5, {{1, 2}})};
  JournalEntry const all = joined(entries);
  EXPECT_EQ(all.cells, (std::vector<CellRange>{{0, 5}}));
  EXPECT_EQ(all.digests, (std::vector<SumShare>{{1, 7}}));
  EXPECT_EQ(all.bytes, 5U);
}

TEST(Joined, AnEntryThatSaysACellTwiceDoesNotCount) {
  JournalEntry twice = entry(0, 4, {{1, 5}});
  twice.cells.push_back({2, 6});
  std::vector<JournalEntry> const entries{twice, entry(5, 7, {{1, 2}})};
  JournalEntry const all = joined(entries);
  EXPECT_EQ(all.cells, (std::vector<CellRange>{{5, 7}}));
  EXPECT_EQ(all.digests, (std::vector<SumShare>{{1, 2}}));
}

TEST(CertainEntries, UnsyncedOnesCountOnlyWhileTheirMachineLives) {
  std::vector<std::optional<Journal>> const living{journal("now", 5, 2)};
  std::vector<std::optional<Journal>> const gone{journal("before", 5, 2)};
  EXPECT_EQ(certain_entries(living, alive).size(), 5U);
  EXPECT_EQ(certain_entries(gone, alive).size(), 2U);
}

TEST(CertainEntries, OnlyThoseWithoutAMarkNameFilesToSync) {
  Journal made = journal("now", 3, 1);
  for (std::uint32_t i = 0; i < 3; ++i) made.entries[i].unsynced = {i, 7};
  std::vector<std::optional<Journal>> const ranks{made};
  EXPECT_EQ(joined(certain_entries(ranks, alive)).unsynced, (std::set<std::uint32_t>{1, 2, 7}));
}

TEST(Joined, HeldBytesOfEntriesThatCountAreKept) {
  std::vector<JournalEntry> entries{entry(0, 2, {}), entry(2, 4, {}), entry(1, 3, {})};
  for (std::size_t i = 0; i < 3; ++i)
    entries[i].held = {{static_cast<std::uint32_t>(i), {4096, "x"}}};
  EXPECT_EQ(joined(entries).held, (std::vector<HeldBytes>{{0, {4096, "x"}}, {1, {4096, "x"}}}));
}

TEST(CertainEntries, RanksCountForThemselves) {
  std::vector<std::optional<Journal>> const ranks{journal("now", 5, 0), std::nullopt,
                                                  journal("before", 9, 3)};
  EXPECT_EQ(certain_entries(ranks, alive).size(), 8U);
}

TEST(CertainEntries, InLockstepARoundIsDoneWhenEveryRankHasIt) {
  std::vector<std::optional<Journal>> const ranks{journal("now", 5, 0, true),
                                                  journal("before", 9, 3, true)};
  EXPECT_EQ(certain_entries(ranks, alive).size(), 6U);
  std::vector<std::optional<Journal>> const one_missing{journal("now", 5, 0, true), std::nullopt};
  EXPECT_TRUE(certain_entries(one_missing, alive).empty());
}

TEST(KeepsLimits, NumbersThatNoJobHasMakeAJournalUseless) {
  JournalLimits const limits{
      .cells = 10, .digests = 4, .records = 3, .file_bytes = {100, 7}, .file_sums = 5};
  JournalEntry const last{.round = 0,
                          .bytes = 0,
                          .cells = {{9, 10}},
                          .digests = {{3, 1}},
                          .records = {{2, 1}},
                          .files = {{4, 1}},
                          .held = {{1, {3, "four"}}},
                          .kept = {{1, 0, 9}}};
  auto const keeps = [&](JournalEntry const& one) {
    Journal made = journal("now", 2, 0);
    made.entries.push_back(one);
    return keeps_limits(made, limits);
  };
  EXPECT_TRUE(keeps(last));
  std::vector<JournalEntry> beyond(12, last);
  beyond[0].cells = {{9, 11}};
  beyond[1].cells = {{5, 4}};
  beyond[2].digests = {{4, 1}};
  beyond[3].records = {{3, 1}};
  beyond[4].files = {{5, 1}};
  beyond[5].files = {{UINT64_MAX, 1}};
  beyond[6].kept = {{2, 0, 9}};
  beyond[7].kept = {{1, 9, 9}};
  beyond[8].written = {{2, 1}};
  beyond[9].held = {{1, {4, "four"}}};
  beyond[10].held = {{1, {UINT64_MAX, "four"}}};
  beyond[11].held = {{2, {0, ""}}};
  for (std::size_t i = 0; i < beyond.size(); ++i) EXPECT_FALSE(keeps(beyond[i])) << i;
}

TEST(InWholePlan, NumbersAreThoseOfTheWholePlan) {
  std::vector<std::uint32_t> const kept{2, 3, 7, 8, 9, 12};
  std::vector<CellRange> const ranges{{0, 3}, {4, 6}};
  EXPECT_EQ(in_whole_plan(ranges, kept),
            (std::vector<CellRange>{{2, 4}, {7, 8}, {9, 10}, {12, 13}}));
  EXPECT_TRUE(in_whole_plan(std::vector<CellRange>{{3, 3}}, kept).empty());
}

}  // namespace
}  // namespace reshard
