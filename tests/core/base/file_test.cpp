#include "core/base/files/file.hpp"

#include <gtest/gtest.h>

#include <cstring>

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

TEST(File, AStampIsTheSameWhetherTheFileIsOpenedOrNot) {
  ScratchFolder const folder("file_stamp_of");
  auto const path = folder.file("a", filled(5, 1));
  EXPECT_EQ(stamp_of(path), File::open_for_reading(path).stamp());
  std::filesystem::create_symlink("a", folder.path() / "link");
  EXPECT_EQ(stamp_of(folder.path() / "link"), stamp_of(path));
  for (std::filesystem::path const& none : {folder.path() / "none", folder.path()}) try {
      stamp_of(none);
      FAIL() << none;
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::io);
    }
}

TEST(File, FoldersAreMadeAsFarAsTheyAreMissing) {
  ScratchFolder const folder("file_folders");
  make_folders(folder.path() / "a" / "b" / "c");
  make_folders(folder.path() / "a" / "b" / "d");
  make_folders(folder.path() / "a" / "b");
  EXPECT_TRUE(std::filesystem::is_directory(folder.path() / "a" / "b" / "d"));
  folder.file("file", filled(1, 1));
  EXPECT_THROW(make_folders(folder.path() / "file"), Error);
  EXPECT_THROW(make_folders(folder.path() / "file" / "below"), Error);
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

}  // namespace
}  // namespace reshard
