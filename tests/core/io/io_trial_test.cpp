#include "core/io/io_trial.hpp"

#include <fcntl.h>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/io/io_engines.hpp"
#include "core/io/shared_extents.hpp"
#include "tests/support/failing_call.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

std::vector<EngineRate> rates(double posix, double direct, double uring) {
  return {{"posix", posix}, {"direct", direct}, {"uring", uring}};
}

/// First: what other tests free could be had again.
TEST(IoTrial, WithoutMemoryItIsRefused) {
  ScratchFolder const folder("io_trial_memory");
  EXPECT_EQ(
      test::refused_with_memory(
          1 << 20, [&] { (void)try_writing(folder.path(), 64, std::uint64_t{16} << 20); }),
      "6: no memory for 8.0 MiB, which each thread needs to try the file system. Set run.io, so "
      "that nothing is tried, or lower run.threads.");
}

TEST(IoTrial, ChoosesTheDefaultUnlessAnotherIsClearlyFaster) {
  EXPECT_EQ(fastest_engine(rates(1.0, 1.1, 1.24), 0), "posix");
  EXPECT_EQ(fastest_engine(rates(1.0, 2.0, 1.9), 0), "direct");
  EXPECT_EQ(fastest_engine(rates(1.0, 1.9, 2.0), 0), "uring");
  EXPECT_EQ(fastest_engine(rates(0, 0, 2.0), 0), "uring");
  EXPECT_EQ(fastest_engine(rates(0, 0, 0), 0), "posix");
}

TEST(IoTrial, WhatLiesInThePageCacheCountsForTheDefault) {
  EXPECT_EQ(fastest_engine(rates(1.0, 2.0, 1.9), 0.35), "direct");
  EXPECT_EQ(fastest_engine(rates(1.0, 2.0, 1.9), 0.4), "posix");
  EXPECT_EQ(fastest_engine(rates(1.0, 1.3, 1.0), 0.1), "posix");
  EXPECT_EQ(fastest_engine(rates(0, 0, 2.0), 1), "posix");
}

TEST(IoTrial, TakesLittleOfTheJob) {
  EXPECT_EQ(trial_bytes_for(0), 16U << 20);
  EXPECT_EQ(trial_bytes_for(std::uint64_t{32} << 30), 32U << 20);
  EXPECT_EQ(trial_bytes_for(std::uint64_t{1} << 40), 64U << 20);
}

void drop_from_page_cache(std::filesystem::path const& path) {
  File const file = File::open_for_writing(path);
  file.sync();
  ASSERT_EQ(::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED), 0);
}

std::vector<std::uint64_t> sizes_of(std::span<std::filesystem::path const> files) {
  std::vector<std::uint64_t> sizes;
  for (std::filesystem::path const& file : files) sizes.push_back(std::filesystem::file_size(file));
  return sizes;
}

double cached_share(std::span<std::filesystem::path const> files) {
  return share_in_page_cache(files, sizes_of(files));
}

/// Whether this file system can do without the page cache: one that lies in memory cannot.
bool can_drop(ScratchFolder const& folder) {
  std::filesystem::path const path = folder.path() / "probe";
  write_text_file(path, std::string(1U << 20, 'x'));
  drop_from_page_cache(path);
  bool const dropped = cached_share({&path, 1}) == 0;
  std::filesystem::remove(path);
  return dropped;
}

TEST(IoTrial, SeesWhatLiesInThePageCache) {
  ScratchFolder const folder("io_trial");
  std::vector<std::filesystem::path> const files = {folder.path() / "a", folder.path() / "b",
                                                    folder.path() / "empty"};
  write_text_file(files[0], std::string(12U << 20, 'a'));
  write_text_file(files[1], std::string(4U << 20, 'b'));
  write_text_file(files[2], "");
  EXPECT_EQ(cached_share(files), 1);
  EXPECT_EQ(cached_share({}), 1);
  if (!can_drop(folder)) GTEST_SKIP() << "this file system lies in memory";
  drop_from_page_cache(files[0]);
  EXPECT_NEAR(cached_share(files), 0.25, 0.02);
  drop_from_page_cache(files[1]);
  EXPECT_EQ(cached_share(files), 0);
}

TEST(IoTrial, DoesNotReadFromTheDeviceWhatLiesInThePageCache) {
  ScratchFolder const folder("io_trial");
  std::filesystem::path const file = folder.path() / "a";
  write_text_file(file, std::string(64U << 20, 'a'));
  IoTrial const trial = try_reading({&file, 1}, sizes_of({&file, 1}), 1, 8U << 20);
  EXPECT_EQ(trial.chosen, "posix");
  EXPECT_TRUE(trial.rates.empty());
  EXPECT_EQ(cached_share({&file, 1}), 1);
}

TEST(IoTrial, MeasuresEachEngineAndLeavesNothingBehind) {
  ScratchFolder const folder("io_trial");
  for (std::size_t const threads : {1U, 3U}) {
    IoTrial const trial = try_writing(folder.path(), threads, 16U << 20);
    ASSERT_EQ(trial.rates.size(), io_engines().size());
    EXPECT_GT(trial.rates.front().bytes_per_second, 0);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
  std::vector<std::filesystem::path> const files = {folder.empty_file("a", 140U << 20),
                                                    folder.empty_file("b", 9U << 20)};
  IoTrial const trial = try_reading(files, sizes_of(files), 2, 16U << 20);
  ASSERT_EQ(trial.rates.size(), io_engines().size());
  EXPECT_GT(trial.rates.front().bytes_per_second, 0);
}

TEST(IoTrial, ReadsNothingWhereThereIsTooLittle) {
  ScratchFolder const folder("io_trial");
  std::filesystem::path const file = folder.empty_file("a", 20U << 20);
  IoTrial const trial = try_reading({&file, 1}, sizes_of({&file, 1}), 2, 16U << 20);
  EXPECT_EQ(trial.chosen, "posix");
  EXPECT_TRUE(trial.rates.empty());
  std::filesystem::path const absent = folder.path() / "absent";
  std::uint64_t const size = 200U << 20;
  EXPECT_EQ(try_reading({&absent, 1}, {&size, 1}, 2, 16U << 20).chosen, "posix");
}

TEST(IoTrial, AFolderThatCannotBeWrittenIsNoError) {
  IoTrial const trial = try_writing("/proc/self", 2, 16U << 20);
  EXPECT_EQ(trial.chosen, "posix");
  EXPECT_EQ(trial.rates.front().bytes_per_second, 0);
}

/// A trial is a hint: what fails in it is no failure of the job.
TEST(IoTrial, WhatTheSystemRefusesIsNoFailure) {
  ScratchFolder const folder("io_trial_refused");
  std::vector<std::filesystem::path> const files = {folder.empty_file("a", 1 << 20)};
  std::vector<std::uint64_t> const sizes = sizes_of(files);
  EXPECT_EQ(test::refused_without(SYS_mmap, EIO,
                                  [&] {
                                    if (share_in_page_cache(files, sizes) != 1)
                                      fail(ErrorKind::internal, "the share is not 1");
                                  }),
            "");
  EXPECT_EQ(test::refused_without(SYS_unlink, EPERM,
                                  [&] {
                                    for (EngineRate const& one :
                                         try_writing(folder.path(), 1, 1 << 20).rates)
                                      if (one.bytes_per_second != 0)
                                        fail(ErrorKind::internal, "a file was written");
                                  }),
            "");
}

TEST(SharedExtents, AFailureOfTheSystemIsAnError) {
  ScratchFolder const folder("clone_refused");
  File const from = File::open_for_reading(folder.empty_file("a", 8192));
  File const to = File::open_for_writing(folder.empty_file("b", 8192));
  std::string const said = test::refused_without(SYS_ioctl, EIO, [&] {
    clone_range({from, 0, to, 0, 4096});
  });
  EXPECT_NE(said.find("clone of 4.0 KiB from "), std::string::npos) << said;
}

}  // namespace
}  // namespace reshard
