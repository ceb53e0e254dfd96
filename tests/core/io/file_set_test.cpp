#include "core/io/file_set.hpp"

#include <gtest/gtest.h>

#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

Bytes filled(std::size_t bytes, int value) { return Bytes(bytes, static_cast<std::byte>(value)); }

TEST(FileSet, ClosesTheLeastRecentlyUsed) {
  ScratchFolder const folder("file_set");
  FileSet files(
      {folder.file("a", Bytes(1)), folder.file("b", Bytes(2)), folder.file("c", Bytes(3))},
      FileSet::Access::read, 2);
  auto const first = files.open(0);
  auto const second = files.open(1);
  EXPECT_EQ(files.open(0), first);
  files.open(2);
  EXPECT_EQ(files.open_count(), 2U);
  EXPECT_EQ(files.open(0), first) << "it was used more recently than file 1";
  EXPECT_NE(files.open(1), second) << "file 1 was closed and is opened anew";
  EXPECT_EQ(second->file().size_bytes(), 2U) << "a file in use stays open";
}

TEST(FileSet, AMissingSourceIsAnErrorWithItsName) {
  FileSet files({"/nowhere/shard"}, FileSet::Access::read);
  EXPECT_THROW(files.open(0), Error);
  EXPECT_EQ(files.open_count(), 0U);
}

std::vector<std::filesystem::path> empty_files(ScratchFolder const& folder, int count) {
  std::vector<std::filesystem::path> paths;
  for (int i = 0; i < count; ++i) paths.push_back(folder.empty_file(std::to_string(i), 64));
  return paths;
}

TEST(FileSet, WrittenFilesStayWhileTheyAreHeld) {
  ScratchFolder const folder("file_set_held");
  FileSet files(empty_files(folder, 4), FileSet::Access::write, 2);
  auto const a = files.open(0);
  auto const b = files.open(1);
  files.open(2);
  EXPECT_EQ(files.open_count(), 3U) << "no other way while two are held";
  files.open(3);
  EXPECT_EQ(files.open_count(), 3U) << "the one that nobody holds has gone";
  a->write_at(0, filled(4, 1));
  EXPECT_EQ(files.open(0), a);
}

TEST(FileSet, ThoseWithNothingToSyncLeaveFirst) {
  ScratchFolder const folder("file_set_clean");
  FileSet files(empty_files(folder, 4), FileSet::Access::write, 3);
  IoFile const* const oldest = files.open(0).get();
  files.open(1);
  files.open(2);
  files.sync(1);
  files.open(3);
  EXPECT_EQ(files.open(0).get(), oldest);
  EXPECT_EQ(files.open_count(), 3U);
}

TEST(FileSet, ClosesAll) {
  ScratchFolder const folder("file_set_close");
  FileSet files(empty_files(folder, 3), FileSet::Access::write);
  for (std::uint32_t f = 0; f < 3; ++f) files.open(f)->write_at(0, filled(8, static_cast<int>(f)));
  files.sync(0);
  files.close();
  EXPECT_EQ(files.open_count(), 0U);
  for (std::uint32_t f = 0; f < 3; ++f)
    EXPECT_EQ(bytes_of(files.path(f))[7], static_cast<std::byte>(f));
  files.sync(0);  // nothing is left to sync
}

}  // namespace
}  // namespace reshard
