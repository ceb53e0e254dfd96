#include "pipeline/run_journal.hpp"

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
  Journal made{.boot_id = std::move(boot), .ranks = 2, .lockstep = lockstep, .entries = {}, .synced = synced};
  for (std::size_t i = 0; i < entries; ++i) made.entries.push_back(entry(i, i + 1, {}));
  return made;
}

bool alive(std::string const& boot) { return boot == "now"; }

TEST(Joined, CellsAreSortedAndJoinedAndSumsCombined) {
  std::vector<JournalEntry> const entries{entry(4, 6, {{1, 0b110}}), entry(0, 2, {{1, 0b011}, {2, 9}}), entry(2, 4, {{2, 9}})};
  JournalEntry const all = joined(entries);
  EXPECT_EQ(all.bytes, 6U);
  EXPECT_EQ(all.cells, (std::vector<CellRange>{{0, 6}}));
  EXPECT_EQ(all.digests, (std::vector<SumShare>{{1, 0b101}}));  // what is zero again is left out
}

TEST(Joined, GapsStay) {
  std::vector<JournalEntry> const entries{entry(5, 6, {}), entry(0, 2, {}), entry(3, 3, {})};
  EXPECT_EQ(joined(entries).cells, (std::vector<CellRange>{{0, 2}, {5, 6}}));
}

TEST(Joined, WhatIsSaidTwiceCountsOnce) {
  std::vector<JournalEntry> const entries{entry(0, 4, {{1, 5}}), entry(0, 4, {{1, 5}}), entry(3, 6, {{1, 9}}), entry(4, 5, {{1, 2}})};
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
  for (std::uint32_t i = 0; i < 3; ++i) made.entries[i].written = {i, 7};
  std::vector<std::optional<Journal>> const ranks{made};
  EXPECT_EQ(joined(certain_entries(ranks, alive)).written, (std::set<std::uint32_t>{1, 2, 7}));
}

TEST(Joined, HeldBytesOfEntriesThatCountAreKept) {
  std::vector<JournalEntry> entries{entry(0, 2, {}), entry(2, 4, {}), entry(1, 3, {})};
  for (std::size_t i = 0; i < 3; ++i) entries[i].held = {{static_cast<std::uint32_t>(i), {4096, "x"}}};
  EXPECT_EQ(joined(entries).held, (std::vector<HeldBytes>{{0, {4096, "x"}}, {1, {4096, "x"}}}));
}

TEST(CertainEntries, RanksCountForThemselves) {
  std::vector<std::optional<Journal>> const ranks{journal("now", 5, 0), std::nullopt, journal("before", 9, 3)};
  EXPECT_EQ(certain_entries(ranks, alive).size(), 8U);
}

TEST(CertainEntries, InLockstepARoundIsDoneWhenEveryRankHasIt) {
  std::vector<std::optional<Journal>> const ranks{journal("now", 5, 0, true), journal("before", 9, 3, true)};
  EXPECT_EQ(certain_entries(ranks, alive).size(), 6U);
  std::vector<std::optional<Journal>> const one_missing{journal("now", 5, 0, true), std::nullopt};
  EXPECT_TRUE(certain_entries(one_missing, alive).empty());
}

}  // namespace
}  // namespace reshard
