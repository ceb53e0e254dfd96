#include "core/base/file.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "core/base/file_set.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

Bytes filled(std::size_t bytes, int value) { return Bytes(bytes, static_cast<std::byte>(value)); }

/// A client of a network file system that may read sends whole pages.
TEST(File, WhatIsOpenedForWritingCannotBeRead) {
  ScratchFolder const folder("file_write_only");
  Bytes into(4);
  File created = File::create(folder.path() / "a");
  created.write_at(0, filled(4, 7));
  EXPECT_THROW(created.read_at(0, into), Error);
  created.close();
  File const again = File::open_for_writing(folder.path() / "a");
  EXPECT_THROW(again.read_at(0, into), Error);
}

TEST(File, CloseLeavesNothingOpenAndMayBeAskedTwice) {
  ScratchFolder const folder("file_close");
  File file = File::create(folder.path() / "a");
  file.close();
  EXPECT_EQ(file.descriptor(), -1);
  file.close();
  EXPECT_FALSE(write_back_has_failed());
}

TEST(File, AStampTellsAReplacedAndAChangedFile) {
  ScratchFolder const folder("file_stamp");
  auto const path = folder.file("a", filled(5, 1));
  FileStamp const before = File::open_for_reading(path).stamp();
  EXPECT_EQ(before.bytes, 5);
  EXPECT_EQ(File::open_for_reading(path).stamp(), before);
  folder.file("b", filled(5, 1));
  rename_path(folder.path() / "b", path);
  FileStamp const replaced = File::open_for_reading(path).stamp();
  EXPECT_NE(replaced.inode, before.inode);
  auto const time = std::filesystem::last_write_time(path);
  File::open_for_writing(path).write_at(0, filled(5, 2));
  std::filesystem::last_write_time(path, time);
  FileStamp const changed = File::open_for_reading(path).stamp();
  EXPECT_EQ(changed.mtime_ns, replaced.mtime_ns);
  EXPECT_NE(changed.ctime_ns, replaced.ctime_ns) << "in place, with its time put back";
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
  File const* const oldest = files.open(0).get();
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
