#include "pipeline/records/source_stamp.hpp"

#include <array>
#include <filesystem>
#include <limits>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/base/files/file_time.hpp"
#include "core/transport/comm.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/other_user.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

class Stamps : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(folder_.path() / "mp_rank_00");
    write("mp_rank_00/model.pt", "12345");
    write(".metadata", "67");
  }
  void write(std::string const& name, std::string_view text) {
    write_text_file(folder_.path() / name, text);
  }
  std::string digest() const { return source_stamp(folder_.path()).digest; }

  ScratchFolder folder_{"stamps"};
};

TEST_F(Stamps, CountFilesAndBytes) {
  SourceStamp const stamp = source_stamp(folder_.path());
  EXPECT_EQ(stamp.files, 2U);
  EXPECT_EQ(stamp.bytes, 7U);
  EXPECT_GT(stamp.newest_ns, 1'600'000'000'000'000'000);
}

TEST_F(Stamps, ChangeWithSizeTimeAndName) {
  std::string const before = digest();
  EXPECT_EQ(digest(), before);
  fs::path const model = folder_.path() / "mp_rank_00" / "model.pt";
  auto const time = fs::last_write_time(model);
  fs::last_write_time(model, time - std::chrono::hours(1));  // older, too, is another file
  EXPECT_NE(digest(), before);
  fs::last_write_time(model, time);
  EXPECT_EQ(digest(), before);
  write("mp_rank_00/model.pt", "123456");
  fs::last_write_time(model, time);
  EXPECT_NE(digest(), before);
  write("mp_rank_00/model.pt", "12345");
  fs::rename(model, folder_.path() / "mp_rank_00" / "other.pt");
  fs::last_write_time(folder_.path() / "mp_rank_00" / "other.pt", time);
  EXPECT_NE(digest(), before);
}

TEST_F(Stamps, LeaveOutALinkThatLeadsNowhereButNothingElse) {
  std::string const before = digest();
  fs::create_symlink("nowhere", folder_.path() / "lost");
  EXPECT_EQ(digest(), before);
  fs::create_symlink(std::string(300, 'x'),
                     folder_.path() / "unknown");  // the system cannot say whether it is there
  auto const error = capture([&] { source_stamp(folder_.path()); });
  ASSERT_TRUE(error) << "a stamp without what could not be looked at";
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_NE(error->sentence().find("/unknown: stat failed"), std::string::npos)
      << error->sentence();
}

TEST_F(Stamps, TakeNoFolderForAFileWhenItCannotBeLookedAt) {
  auto const error = capture([&] { source_stamp(folder_.path() / std::string(300, 'x')); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
}

TEST_F(Stamps, TakeATimeFarInTheFutureForTheLastThatTheyKnow) {
  constexpr std::time_t year_2286 = 10'000'000'000;
  fs::path const model = folder_.path() / "mp_rank_00" / "model.pt";
  std::array<timespec, 2> const times = {timespec{year_2286, 0}, timespec{year_2286, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, model.c_str(), times.data(), 0), 0);
  struct stat status {};
  if (::stat(model.c_str(), &status) != 0 || status.st_mtim.tv_sec != year_2286)
    GTEST_SKIP() << "this file system has no such times";
  EXPECT_EQ(source_stamp(folder_.path()).newest_ns, std::numeric_limits<std::int64_t>::max());
}

TEST(FileTimes, AreKeptWithinWhatNanosecondsCanSay) {
  EXPECT_EQ(nanoseconds_since_1970({1'700'000'000, 5}), 1'700'000'000'000'000'005);
  EXPECT_EQ(nanoseconds_since_1970({-1, 999'999'999}), -1);
  EXPECT_EQ(nanoseconds_since_1970({9'223'372'036, 854'775'807}),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(nanoseconds_since_1970({9'223'372'036, 854'775'808}),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(nanoseconds_since_1970({10'000'000'000, 0}), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(nanoseconds_since_1970({-10'000'000'000, 0}), std::numeric_limits<std::int64_t>::min());
}

TEST_F(Stamps, LeaveHiddenFilesOut) {
  std::string const before = digest();
  write(".nfs0001", "x");
  EXPECT_EQ(digest(), before);
  write("new", "");
  EXPECT_NE(digest(), before);
}

TEST_F(Stamps, ComeBackFromJson) {
  SourceStamp const stamp = source_stamp(folder_.path());
  auto const back = parse_stamp(stamp_json(stamp));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->digest, stamp.digest);
  EXPECT_EQ(back->files, stamp.files);
  EXPECT_EQ(back->bytes, stamp.bytes);
  EXPECT_EQ(back->newest_ns, stamp.newest_ns);
  EXPECT_FALSE(parse_stamp(Json("text")));
  EXPECT_FALSE(parse_stamp(Json().set("files", 1).set("bytes", 2).set("newest_ns", 3)));
}

TEST(Stamp, OfOneFileAndOfNothing) {
  ScratchFolder const folder("stamp_file");
  write_text_file(folder.path() / "model.h5", "abc");
  EXPECT_EQ(source_stamp(folder.path() / "model.h5").bytes, 3U);
  EXPECT_EQ(source_stamp(folder.path() / "nothing").files, 0U);
}

TEST_F(Stamps, NeedWhatTheyCountToBeAccessible) {
  ::chmod(folder_.path().c_str(), 0755);
  ::chmod((folder_.path() / "mp_rank_00").c_str(), 0744);  // others read its names alone
  test::AsOtherUser const user;
  if (!user.is_other()) GTEST_SKIP() << "needs two users, so root";
  test::expect_refused(ErrorKind::source, "cannot be accessed: Permission denied",
                       [&] { (void)source_stamp(folder_.path()); });
}

}  // namespace
}  // namespace reshard
