#include "core/io/file_set.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include <sys/resource.h>

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/base/threads/workers.hpp"
#include "core/io/io_engines.hpp"
#include "core/io/posix_io.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

/// Counts syncs, which take a while, and fail where they shall.
class SlowSyncs final : public FileIo {
 public:
  std::string_view name() const override { return "slow"; }
  IoAlignment alignment() const override { return {}; }
  std::unique_ptr<IoFile> open_for_reading(std::filesystem::path const& path,
                                           ErrorKind missing) override {
    return PosixIo().open_for_reading(path, missing);
  }
  std::unique_ptr<IoFile> open_for_writing(std::filesystem::path const& path) override {
    return adopt(File::open_for_writing(path));
  }
  std::unique_ptr<IoFile> adopt(File file) override {
    return std::make_unique<SlowFile>(std::move(file), *this);
  }
  std::string_view write_mode() const override { return "slow"; }
  std::atomic<int> begun = 0;
  std::atomic<int> ended = 0;
  bool failing = false;

 private:
  class SlowFile final : public PosixFile {
   public:
    SlowFile(File file, SlowSyncs& of)
        : PosixFile(std::move(file), std::make_shared<WriteCache>(WriteMode::automatic)), of_(of) {}
    void sync() const override {
      ++of_.begun;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ++of_.ended;
      if (of_.failing) fail(ErrorKind::io, "lost. Look.");
    }

   private:
    SlowSyncs& of_;
  };
};

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

TEST(FileSet, TakesFilesThatWereJustMade) {
  ScratchFolder const folder("file_set_made");
  std::vector<std::filesystem::path> paths;
  for (int i = 0; i < 3; ++i) paths.push_back(folder.path() / std::to_string(i));
  FileSet files(paths, FileSet::Access::write, 2);
  for (std::uint32_t f = 0; f < 3; ++f) {
    File made = File::create(paths[f]);
    made.resize(64);
    made.write_at(0, filled(4, 7));
    files.adopt(f, std::move(made));
  }
  EXPECT_EQ(files.open_count(), 2U) << "there is no room for the third";
  EXPECT_EQ(files.unsynced(), (std::vector<std::uint32_t>{0, 1}));
  files.sync(1);
  EXPECT_EQ(files.unsynced(), (std::vector<std::uint32_t>{0}));
  for (std::uint32_t f = 0; f < 3; ++f) files.open(f)->write_at(4, filled(4, 9));
  files.close();
  for (auto const& path : paths) {
    EXPECT_EQ(bytes_of(path)[3], std::byte{7});
    EXPECT_EQ(bytes_of(path)[7], std::byte{9});
  }
}

TEST(FileSet, AnAdoptedFileIsNotOpenedAgain) {
  ScratchFolder const folder("file_set_adopted");
  for (IoEngine const& engine : io_engines()) {
    std::filesystem::path const path = folder.path() / std::string(engine.name);
    FileSet files({path}, FileSet::Access::write, 4, make_file_io(engine.name));
    File made = File::create(path);
    made.resize(64);
    files.adopt(0, std::move(made));
    auto const used = files.open(0);
    std::filesystem::remove(path);  // opening it again would fail
    EXPECT_EQ(used->file().size_bytes(), 64U);
    used->sync();
  }
}

TEST(FileSet, ThreadsThatNeedTheSameFileGetOne) {
  ScratchFolder const folder("file_set_threads");
  FileSet files(empty_files(folder, 4), FileSet::Access::read, 4);
  std::atomic<int> opened = 0;
  files.look_at_each([&](std::uint32_t, File const&) {
    ++opened;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  Workers workers(8);
  std::vector<std::shared_ptr<IoFile const>> got(64);
  workers.run(got.size(), [&](std::size_t item, std::size_t) {
    got[item] = files.open(static_cast<std::uint32_t>(item % 4));
  });
  EXPECT_EQ(opened, 4);
  for (std::size_t i = 4; i < got.size(); ++i) EXPECT_EQ(got[i], got[i % 4]);
}

TEST(FileSet, ThreadsThatOpenManyFilesKeepToTheLimit) {
  ScratchFolder const folder("file_set_limit");
  FileSet files(empty_files(folder, 16), FileSet::Access::read, 2);
  files.look_at_each([](std::uint32_t, File const&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  Workers workers(8);
  std::atomic<std::size_t> most = 0;
  workers.run(64, [&](std::size_t item, std::size_t) {
    files.open(static_cast<std::uint32_t>(item % 16));
    std::size_t const now = files.open_count();
    for (std::size_t before = most; before < now && !most.compare_exchange_weak(before, now);) {
    }
  });
  EXPECT_EQ(most, 2U);
}

TEST(FileSet, AFailedOpeningFailsForEveryoneWhoWaits) {
  FileSet files({"/nowhere/shard"}, FileSet::Access::read);
  Workers workers(4);
  std::atomic<int> failed = 0;
  workers.run(16, [&](std::size_t, std::size_t) {
    if (capture([&] { files.open(0); })) ++failed;
  });
  EXPECT_EQ(failed, 16);
  EXPECT_EQ(files.open_count(), 0U);
}

TEST(FileSet, NoOneTakesASyncForDoneThatIsUnderWay) {
  ScratchFolder const folder("file_set_syncs");
  auto const io = std::make_shared<SlowSyncs>();
  FileSet files({folder.file("a", Bytes(8))}, FileSet::Access::write, 4, io);
  files.open(0)->write_at(0, filled(8, 1));
  Workers workers(4);
  workers.run(4, [&](std::size_t, std::size_t) {
    files.sync(0);
    EXPECT_GE(io->ended, 1);
  });
  EXPECT_EQ(io->begun, 1) << "one is enough for all";
  auto const held = files.open(0);
  files.sync(0);
  files.sync(0);
  EXPECT_EQ(io->begun, 3) << "its holder may have written in between";
}

TEST(FileSet, AFailedSyncFailsForEveryone) {
  ScratchFolder const folder("file_set_lost");
  auto const io = std::make_shared<SlowSyncs>();
  io->failing = true;
  FileSet files({folder.file("a", Bytes(8)), folder.file("b", Bytes(8))}, FileSet::Access::write, 1,
                io);
  files.open(0)->write_at(0, filled(8, 1));
  Workers workers(4);
  std::atomic<int> failed = 0;
  workers.run(4, [&](std::size_t, std::size_t) {
    if (capture([&] { files.sync(0); })) ++failed;
  });
  EXPECT_EQ(failed, 4);
  EXPECT_EQ(io->begun, 1);
  EXPECT_TRUE(capture([&] { files.open(1); })) << "nor does it leave the set unnoticed";
}

TEST(FileSet, KeepsFewFilesOpenWhereFewAreAllowed) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  auto const kept = [&](rlim_t allowed) {
    rlimit const now{allowed, before.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &now), 0);
    std::size_t const limit = FileSet::usual_open_limit();
    ::setrlimit(RLIMIT_NOFILE, &before);
    return limit;
  };
  EXPECT_EQ(kept(20), 2U);
  EXPECT_EQ(kept(64), 8U);
  EXPECT_EQ(kept(232), 50U);
}

}  // namespace
}  // namespace reshard
