#include "pipeline/journal/journal_folder.hpp"

#include <fstream>

#include <gtest/gtest.h>

#include "core/base/files/file.hpp"
#include "core/formats/manifest/file_records.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

class JournalFolderTest : public testing::Test {
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
  std::uint64_t manifest_written() const {
    return record_of(staging_ / "reshard.json", staging_).xxh3;
  }

  ScratchFolder scratch_{"journal_folder"};
  std::filesystem::path staging_ = scratch_.path() / "staging";
  std::filesystem::path journal_ = scratch_.path() / "journal";
  JobIdentity identity_{"program", "job", "source", "plan", "text"};
};

TEST_F(JournalFolderTest, ItSpeaksOfOneFolderByWhateverName) {
  JournalFolder const journal(journal_);
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

/// Of all that a folder holds.
std::vector<std::string> lines_below(std::filesystem::path const& folder) {
  std::vector<std::filesystem::path> paths;
  for (auto const& entry : std::filesystem::recursive_directory_iterator(folder))
    paths.push_back(entry.path());
  return contents_lines(paths, folder);
}

TEST_F(JournalFolderTest, ACompleteFolderIsKnownAgainUntilAnythingInItChanges) {
  JournalFolder const journal(journal_);
  EXPECT_FALSE(journal.is_complete(staging_));
  journal.mark_complete(lines_below(staging_), manifest_written());
  EXPECT_TRUE(journal.is_complete(staging_));
  put(staging_ / "more", "");
  EXPECT_FALSE(journal.is_complete(staging_));
  std::filesystem::remove(staging_ / "more");
  EXPECT_TRUE(journal.is_complete(staging_));
  put(staging_ / "folder" / "file", "bytfs");  // of the same size
  EXPECT_FALSE(journal.is_complete(staging_));
  journal.mark_complete(lines_below(staging_), manifest_written());
  put(journal_ / "complete", "");
  EXPECT_FALSE(journal.is_complete(staging_));
}

TEST_F(JournalFolderTest, ACompleteFolderHasTheManifestThatWasWritten) {
  JournalFolder const journal(journal_);
  for (std::optional<std::uint64_t> const digest :
       {std::optional(manifest_written()), std::optional(manifest_written() + 1), {}}) {
    journal.mark_complete(lines_below(staging_), digest);
    EXPECT_EQ(journal.is_complete(staging_), digest == manifest_written());
  }
}

TEST_F(JournalFolderTest, AnotherJobIsNamedByTheLinesThatChanged) {
  JournalFolder const journal(journal_);
  journal.create(staging_, identity_, "");
  JobIdentity other = identity_;
  other.job = "another";
  other.job_text = "text\nlayout.tp = 2\n";
  auto const obstacle = journal.obstacle(staging_, other);
  ASSERT_TRUE(obstacle);
  EXPECT_NE(obstacle->find(": layout.tp = 2"), std::string::npos) << *obstacle;
}

TEST_F(JournalFolderTest, AfterALostWriteNobodyGoesOn) {
  JournalFolder const journal(journal_);
  journal.create(staging_, identity_, "/train/moe");
  EXPECT_EQ(read_text_file(journal_ / "source", 100), "/train/moe");
  journal.distrust();
  auto const obstacle = journal.obstacle(staging_, identity_);
  ASSERT_TRUE(obstacle);
  EXPECT_NE(obstacle->find("a sync failed"), std::string::npos) << *obstacle;
}

TEST_F(JournalFolderTest, NamesSayRunAndRank) {
  JournalFolder const journal(journal_);
  EXPECT_EQ(journal.rank_file(2, 7), journal_ / "0002-00007");
  EXPECT_EQ(journal.base_file(12), journal_ / "0012.base");
}

TEST(JournalNames, OfPartsSayWhichPart) {
  JournalFolder const folder("/journal");
  for (std::uint64_t const run : {0U, 4U, 12'345U})
    for (std::size_t const part : {0U, 31U, 1'234'567U}) {
      std::string const name = folder.part_file(run, part).filename().string();
      EXPECT_EQ(JournalFolder::part_of(name, run), part) << name;
      EXPECT_EQ(JournalFolder::part_of(name, run + 1), std::nullopt) << name;
      EXPECT_EQ(JournalFolder::part_of(name + "x", run), std::nullopt) << name;
    }
  for (char const* other : {"0004-00007", "0004.base", "0004.claim-", "0004.claim-x", "job"})
    EXPECT_EQ(JournalFolder::part_of(other, 4), std::nullopt) << other;
}

TEST_F(JournalFolderTest, ALinkInThePlaceOfAFileIsNotLookedThrough) {
  std::filesystem::create_symlink("file", staging_ / "folder" / "link");
  std::vector<std::filesystem::path> const paths{staging_ / "folder" / "link"};
  test::expect_refused(ErrorKind::io, "a file in it was replaced by a link",
                       [&] { (void)contents_lines(paths, staging_); });
}

}  // namespace
}  // namespace reshard
