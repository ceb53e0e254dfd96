#include "pipeline/target/run_journal.hpp"

#include <fstream>

#include <gtest/gtest.h>
#include <linux/magic.h>

#include "core/base/file.hpp"
#include "tests/support/scratch_folder.hpp"

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
  RunJournal::Limits const limits{.cells = 10, .digests = 4, .records = 3, .files = 2};
  JournalEntry const last{.round = 0,
                          .bytes = 0,
                          .cells = {{9, 10}},
                          .digests = {{3, 1}},
                          .records = {{2, 1}},
                          .files = {{1, 1}}};
  auto const keeps = [&](JournalEntry const& one) {
    Journal made = journal("now", 2, 0);
    made.entries.push_back(one);
    return keeps_limits(made, limits);
  };
  EXPECT_TRUE(keeps(last));
  std::vector<JournalEntry> beyond(6, last);
  beyond[0].cells = {{9, 11}};
  beyond[1].cells = {{5, 4}};
  beyond[2].digests = {{4, 1}};
  beyond[3].records = {{3, 1}};
  beyond[4].files = {{2, 1}};
  beyond[5].files = {{UINT64_MAX, 1}};
  for (std::size_t i = 0; i < beyond.size(); ++i) EXPECT_FALSE(keeps(beyond[i])) << i;
}

TEST(LocalFileSystem, NetworkOnesAreNot) {
  for (std::uint64_t const type :
       {std::uint64_t{EXT4_SUPER_MAGIC}, std::uint64_t{TMPFS_MAGIC},
        std::uint64_t{OVERLAYFS_SUPER_MAGIC}, std::uint64_t{BTRFS_SUPER_MAGIC},
        std::uint64_t{0x58465342}, std::uint64_t{0x2fc12fc1}})
    EXPECT_TRUE(is_local_file_system(type)) << type;
  // BTRFS_SUPER_MAGIC has its highest bit set: statfs may give it as a negative number.
  EXPECT_TRUE(is_local_file_system(
      static_cast<std::uint64_t>(static_cast<std::int32_t>(BTRFS_SUPER_MAGIC))));
  constexpr std::uint64_t lustre = 0x0bd00bd0;
  constexpr std::uint64_t gpfs = 0x47504653;
  for (std::uint64_t const type : {std::uint64_t{NFS_SUPER_MAGIC}, std::uint64_t{FUSE_SUPER_MAGIC},
                                   lustre, gpfs, std::uint64_t{0}})
    EXPECT_FALSE(is_local_file_system(type)) << type;
}

class RunJournalTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(staging_ / "folder");
    std::filesystem::create_directory(journal_);
    put(staging_ / "folder" / "file", "bytes");
    put(staging_ / "reshard.json", "{}");
  }
  static void put(std::filesystem::path const& path, std::string const& text) {
    std::ofstream(path) << text;
  }

  ScratchFolder scratch_{"run_journal"};
  std::filesystem::path staging_ = scratch_.path() / "staging";
  std::filesystem::path journal_ = scratch_.path() / "journal";
  JobIdentity identity_{"program", "job", "source", "plan", "text"};
};

TEST_F(RunJournalTest, ItSpeaksOfOneFolderByWhateverName) {
  RunJournal const journal(journal_);
  journal.create(staging_, identity_, "");
  EXPECT_EQ(journal.obstacle(staging_, identity_), std::nullopt);
  std::filesystem::path const renamed = scratch_.path() / "renamed";
  std::filesystem::rename(staging_, renamed);
  EXPECT_TRUE(journal.is_of(renamed));
  EXPECT_EQ(journal.obstacle(renamed, identity_), std::nullopt);
  std::filesystem::create_directory(staging_);
  EXPECT_FALSE(journal.is_of(staging_));
  EXPECT_NE(journal.obstacle(staging_, identity_), std::nullopt);
}

TEST_F(RunJournalTest, ACompleteFolderIsKnownAgainUntilAnythingInItChanges) {
  RunJournal const journal(journal_);
  EXPECT_FALSE(journal.is_complete(staging_));
  journal.mark_complete(staging_);
  EXPECT_TRUE(journal.is_complete(staging_));
  put(staging_ / "more", "");
  EXPECT_FALSE(journal.is_complete(staging_));
  std::filesystem::remove(staging_ / "more");
  EXPECT_TRUE(journal.is_complete(staging_));
  put(staging_ / "folder" / "file", "bytfs");  // of the same size
  EXPECT_FALSE(journal.is_complete(staging_));
  journal.mark_complete(staging_);
  put(journal_ / "complete", "");
  EXPECT_FALSE(journal.is_complete(staging_));
}

}  // namespace
}  // namespace reshard
