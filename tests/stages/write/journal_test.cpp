#include "stages/write/journal.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

namespace reshard {
namespace {

namespace fs = std::filesystem;

class JournalTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  JournalWriter::Parts parts(std::uint64_t sync_bytes = UINT64_MAX, double sync_seconds = 3600) {
    return {.path = path_,
            .ranks = 3,
            .lockstep = true,
            .sync_file = [this](std::uint32_t file) { synced_.push_back(file); },
            .sync_bytes = sync_bytes,
            .sync_seconds = sync_seconds};
  }
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }
  void put(std::string const& text) const { std::ofstream(path_) << text; }

  fs::path folder_ = fs::temp_directory_path() / ("journal_test-" + std::to_string(::getpid()));
  fs::path path_ = folder_ / "0000-00002";
  std::vector<std::uint32_t> synced_;
};

JournalEntry entry(std::uint64_t round) {
  return {.round = round,
          .bytes = 100 + round,
          .cells = {{round, round + 1}},
          .digests = {{7, round}},
          .records = {{1, 2}, {3, 4}},
          .files = {{5, 6}},
          .sources = {{8, 9}, {10, 11}},
          .covered = {{8, UINT64_MAX}, {10, round}},
          .digested = {{7, 400}},
          .written = {{5, 100 + round}}};
}

TEST_F(JournalTest, BytesThatAreStillToBeWrittenAreFoundAgain) {
  JournalEntry made = entry(3);
  made.held = {{0, {5, "abc"}}, {9, {1ULL << 40, std::string("\0\n", 2)}}};
  made.kept = {{0, 5, 6}, {9, 0, 1ULL << 40}};
  made.unsynced = {2, 9};
  auto const found = parse_journal_block(journal_block(made));
  ASSERT_TRUE(found);
  EXPECT_EQ(*found, made);
}

TEST_F(JournalTest, EntriesAreFoundAgain) {
  std::optional<JournalWriter> writer(parts());
  for (std::uint64_t round = 0; round < 5; ++round) writer->add(entry(round), {});
  auto const journal = read_journal(path_);  // as after a kill: the writer is still there
  ASSERT_TRUE(journal);
  EXPECT_EQ(journal->boot_id, this_boot_id());
  EXPECT_EQ(journal->ranks, 3U);
  EXPECT_TRUE(journal->lockstep);
  ASSERT_EQ(journal->entries.size(), 5U);
  for (std::uint64_t round = 0; round < 5; ++round)
    EXPECT_EQ(journal->entries[round], entry(round));
  EXPECT_EQ(journal->synced, 0U);
}

TEST_F(JournalTest, AMarkFollowsTheFilesThatItSpeaksOf) {
  std::vector<Extent> const writes{{4, 0, 60, 0}, {9, 0, 60, 0}};
  {
    JournalWriter writer(parts(100));
    writer.add(entry(0), writes);
    for (int i = 0; i < 2000 && read_journal(path_)->synced == 0; ++i) ::usleep(5000);
    EXPECT_EQ(read_journal(path_)->synced, 1U);
    EXPECT_EQ(synced_, (std::vector<std::uint32_t>{4, 9}));
    writer.add(entry(1), {});
    EXPECT_EQ(read_journal(path_)->synced, 1U);
    writer.add(entry(2), std::span(writes).first(1));
  }
  EXPECT_EQ(read_journal(path_)->synced, 3U);  // a tidy end
  EXPECT_EQ(synced_, (std::vector<std::uint32_t>{4, 9, 4}));
}

TEST_F(JournalTest, ATidyEndInTheMiddleOfASyncMarksTheRestToo) {
  std::vector<Extent> const writes{{4, 0, 60, 0}};
  std::atomic<bool> syncing = false;
  JournalWriter::Parts slow = parts(10);
  slow.sync_file = [&](std::uint32_t) {
    syncing = true;
    ::usleep(50'000);
  };
  {
    JournalWriter writer(slow);
    writer.add(entry(0), writes);
    while (!syncing) ::usleep(1000);
    writer.add(entry(1), writes);
  }
  EXPECT_EQ(read_journal(path_)->synced, 2U);
}

TEST_F(JournalTest, RoundsWithoutWritesAreMarkedToo) {
  JournalWriter writer(parts());
  writer.add(entry(0), {});
  writer.end();
  EXPECT_EQ(read_journal(path_)->synced, 1U);
  EXPECT_TRUE(synced_.empty());
}

TEST_F(JournalTest, AFailedLastSyncIsAnError) {
  JournalWriter::Parts failing = parts();
  failing.sync_file = [](std::uint32_t) { fail(ErrorKind::io, "the device is gone"); };
  JournalWriter writer(failing);
  std::vector<Extent> const writes{{0, 0, 60, 0}};
  writer.add(entry(0), writes);
  EXPECT_THROW(writer.end(), Error);
  EXPECT_EQ(read_journal(path_)->synced, 0U);
}

TEST_F(JournalTest, AFileThatCannotBeSyncedEndsTheJob) {
  JournalWriter::Parts failing = parts(10);
  failing.sync_file = [](std::uint32_t) { fail(ErrorKind::io, "the device is gone"); };
  JournalWriter writer(failing);
  std::vector<Extent> const writes{{0, 0, 60, 0}};
  writer.add(entry(0), writes);
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  EXPECT_THROW(while (std::chrono::steady_clock::now() < end) writer.add(entry(1), writes), Error);
  EXPECT_EQ(read_journal(path_)->synced, 0U);
}

TEST_F(JournalTest, CutAnywhereItHoldsTheEntriesThatAreWhole) {
  {
    JournalWriter writer(parts());
    for (std::uint64_t round = 0; round < 3; ++round) writer.add(entry(round), {});
  }
  std::string const whole = text();
  std::size_t before = 0;
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    put(whole.substr(0, length));
    auto const journal = read_journal(path_);
    if (!journal) continue;
    ASSERT_GE(journal->entries.size(), before) << length;
    before = journal->entries.size();
    for (std::size_t i = 0; i < before; ++i) EXPECT_EQ(journal->entries[i], entry(i)) << length;
  }
  EXPECT_EQ(before, 3U);
}

TEST_F(JournalTest, AChangedByteEndsItThere) {
  {
    JournalWriter writer(parts());
    for (std::uint64_t round = 0; round < 3; ++round) writer.add(entry(round), {});
  }
  std::string const whole = text();
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    put(damaged);
    auto const journal = read_journal(path_);
    if (!journal) continue;
    ASSERT_LE(journal->entries.size(), 3U);
    for (std::size_t i = 0; i < journal->entries.size(); ++i)
      EXPECT_EQ(journal->entries[i], entry(i)) << at;
  }
}

TEST_F(JournalTest, ABaseIsAJournalOfOneEntry) {
  write_journal(path_, entry(4));
  auto const journal = read_journal(path_);
  ASSERT_TRUE(journal);
  EXPECT_EQ(journal->entries, std::vector<JournalEntry>{entry(4)});
  EXPECT_EQ(parse_journal_block(journal_block(entry(4))), entry(4));
  EXPECT_EQ(parse_journal_block(journal_block(entry(4)) + "x"), std::nullopt);
}

}  // namespace
}  // namespace reshard
