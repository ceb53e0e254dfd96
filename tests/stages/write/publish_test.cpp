#include "stages/write/publish.hpp"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>
#include <optional>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/transport/comm.hpp"
#include "stages/write/journal.hpp"
#include "stages/write/target_place.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr char token[] = "0123456789abcdef";

class PublishTest : public testing::Test {
 protected:
  fs::path target() const { return scratch_.path() / "out"; }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (auto const& entry : fs::directory_iterator(scratch_.path()))
      found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }
  static void put(fs::path const& path, std::string const& text) { std::ofstream(path) << text; }
  static std::string text_of(fs::path const& path) { return read_text_file(path, 1000); }
  static void age(fs::path const& path, int seconds) {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec -= seconds;
    timespec const times[2] = {now, now};
    ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
  }
  void old_checkpoint() const {
    fs::create_directory(target());
    put(target() / "old", "old");
  }
  /// What a run on some machine has left: killed, its last sign of life so long ago.
  void leave(std::string const& boot, int seconds_ago, bool ended = false) const {
    fs::path const journal = journal_of(target(), token);
    fs::path const staging = staging_of(target(), token);
    fs::create_directory(journal);
    fs::create_directory(staging);
    put(staging / "file", "left");
    write_owner(journal, {token, boot, "node7", ended});
    for (fs::path const& path : {journal / owner_name, staging / "file", journal, staging})
      age(path, seconds_ago);
  }
  static std::optional<Error> error_of(std::function<void()> const& work) { return capture(work); }

  ScratchFolder scratch_{"publish"};
};

TEST_F(PublishTest, HiddenNamesAreUnderstood) {
  auto const parsed = parse_hidden_name(".iter_1.v2.resume-0123456789abcdef");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->target, "iter_1.v2");
  EXPECT_EQ(parsed->kind, HiddenName::Kind::journal);
  EXPECT_EQ(parsed->token, token);
  ASSERT_TRUE(parse_hidden_name(".out.part"));
  EXPECT_EQ(parse_hidden_name(".out.part")->token, "");
  for (char const* const other : {"out.part", ".out.parts", ".out.part-", ".out.part-0123",
                                  ".out.part-0123456789ABCDEF", ".part", "..part", ".out.lock", ""})
    EXPECT_FALSE(parse_hidden_name(other)) << other;
}

TEST_F(PublishTest, ATargetIsPublishedAndNothingElseStays) {
  {
    Publication publication(target(), ExistingTarget::refuse);
    publication.start_afresh();
    put(publication.staging() / "file", "new");
    EXPECT_EQ(read_owner(publication.journal())->token, publication.token());
    EXPECT_TRUE(publication.is_owner());
    publication.publish();
  }
  EXPECT_EQ(names(), std::vector<std::string>{"out"});
  EXPECT_EQ(text_of(target() / "file"), "new");
}

TEST_F(PublishTest, AReplacedCheckpointIsGoneInTheEnd) {
  old_checkpoint();
  {
    Publication publication(target(), ExistingTarget::replace);
    publication.start_afresh();
    put(publication.staging() / "file", "new");
    publication.publish();
  }
  EXPECT_EQ(names(), std::vector<std::string>{"out"});
  EXPECT_FALSE(fs::exists(target() / "old"));
}

/// As when rank 0 alone is killed: its lock is free at once, the other ranks write on.
TEST_F(PublishTest, RanksThatOutliveTheirFirstOneFindNothingToWriteInto) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  pid_t const child = ::fork();
  if (child == 0) {
    Publication publication(target(), ExistingTarget::refuse);
    publication.start_afresh();
    put(publication.staging() / "file", "of the first job");
    std::string const own = publication.token();
    if (::write(pipe_ends[1], own.data(), own.size()) < 0) ::_exit(1);
    ::raise(SIGKILL);
  }
  std::string first(16, ' ');
  ASSERT_EQ(::read(pipe_ends[0], first.data(), first.size()), 16);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  File const held =
      File::open_for_writing(staging_of(target(), first) / "file");  // of a rank that lives
  {
    Publication second(target(), ExistingTarget::refuse);
    EXPECT_TRUE(second.is_locked());
    EXPECT_EQ(second.leftovers().staging, std::vector<fs::path>{staging_of(target(), first)});
    second.start_afresh();
    put(second.staging() / "file", "of the second job");
    EXPECT_TRUE(error_of([&] { File::create(staging_of(target(), first) / "more"); }));
    EXPECT_TRUE(error_of([&] { File::open_for_writing(staging_of(target(), first) / "file"); }));
    EXPECT_TRUE(
        error_of([&] { write_text_file(journal_of(target(), first) / "0000-00001", "x"); }));
    std::string const late = "late words of the first job";
    held.write_at(0, std::as_bytes(std::span(late)));
    second.publish();
  }
  EXPECT_EQ(text_of(target() / "file"), "of the second job");
  EXPECT_EQ(names(), std::vector<std::string>{"out"});
}

TEST_F(PublishTest, WhoHasLostItsFoldersPublishesNothingAndTouchesNothing) {
  Publication first(target(), ExistingTarget::refuse);
  first.start_afresh();
  put(first.staging() / "file", "of the first job");
  fs::remove(lock_of(target()));  // as where locks are those of one machine
  {
    Publication second(target(), ExistingTarget::refuse);
    EXPECT_TRUE(second.is_locked());
    second.go_on(first.journal(), first.staging());
    second.keep(true);
    EXPECT_FALSE(first.is_owner());
    auto const error = error_of([&] { first.publish(); });
    ASSERT_TRUE(error);
    EXPECT_TRUE(second.is_owner());
    EXPECT_EQ(text_of(second.staging() / "file"), "of the first job");
    second.publish();
  }
  EXPECT_EQ(text_of(target() / "file"), "of the first job");
}

TEST_F(PublishTest, AnotherFolderOfTheSameNameIsNotPublished) {
  Publication publication(target(), ExistingTarget::refuse);
  publication.start_afresh();
  fs::rename(publication.staging(), scratch_.path() / "away");
  fs::create_directory(publication.staging());
  auto const error = error_of([&] { publication.publish(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::target);
  EXPECT_NE(error->sentence().find("another job has taken over"), std::string::npos)
      << error->sentence();
  EXPECT_FALSE(is_there(target()));
}

TEST_F(PublishTest, TheSignOfLifeIsTouchedAndMissed) {
  fs::path const file = scratch_.path() / "owner";
  put(file, "x");
  age(file, 1000);
  auto const before = fs::last_write_time(file);
  LifeSign const sign(file, 0.01);
  for (int i = 0; i < 1000 && fs::last_write_time(file) == before; ++i) ::usleep(5000);
  EXPECT_NE(fs::last_write_time(file), before);
  EXPECT_FALSE(sign.is_lost());
  fs::rename(file, scratch_.path() / "taken");
  for (int i = 0; i < 1000 && !sign.is_lost(); ++i) ::usleep(5000);
  EXPECT_TRUE(sign.is_lost());
}

TEST_F(PublishTest, ARunIsAliveWhileItsOwnerIsTouched) {
  struct Case {
    char const* boot;  // "": of this machine
    int seconds_ago;
    bool ended;
    bool alive_with_lock;
    bool alive_without;
  };
  for (Case const& c :
       {Case{"", 10, false, false, true}, Case{"", 10, true, false, false},
        Case{"other", 10, false, true, true}, Case{"other", quiet_seconds + 5, false, false, false},
        Case{"other", 10, true, false, false}, Case{"", quiet_seconds + 5, false, false, false}}) {
    SCOPED_TRACE(fmt::format("boot '{}', {} s ago, ended {}", c.boot, c.seconds_ago, c.ended));
    leave(*c.boot == '\0' ? this_boot_id() : c.boot, c.seconds_ago, c.ended);
    Leftovers const left = leftovers_of(target());
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    std::int64_t const now_ns = now.tv_sec * 1'000'000'000;
    EXPECT_EQ(sign_of_life(left, true, now_ns).has_value(), c.alive_with_lock);
    EXPECT_EQ(sign_of_life(left, false, now_ns).has_value(), c.alive_without);
    for (fs::path const& path : left.all()) fs::remove_all(path);
  }
}

TEST_F(PublishTest, WhatAnotherMachineMayBeWritingIsNotDeleted) {
  leave("boot of another machine", 10);
  {
    Publication publication(target(), ExistingTarget::refuse);
    auto const error = error_of([&] { publication.start_afresh(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::target);
    EXPECT_NE(error->sentence().find("node7"), std::string::npos) << error->sentence();
  }
  EXPECT_TRUE(error_of([&] { remove_leftovers(target(), WithoutLocks::when_quiet); }));
  EXPECT_EQ(text_of(staging_of(target(), token) / "file"), "left");
}

TEST_F(PublishTest, OnlyNamesOfThisTargetAreRemoved) {
  leave(this_boot_id(), 10);
  fs::create_directory(scratch_.path() / ".out.part");  // of an earlier version
  for (char const* const other :
       {".other.part-0123456789abcdef", ".out.parts", ".out2.part", "out"})
    fs::create_directory(scratch_.path() / other);
  EXPECT_TRUE(remove_leftovers(target(), WithoutLocks::refuse).removed);
  EXPECT_EQ(names(), (std::vector<std::string>{".other.part-0123456789abcdef", ".out.parts",
                                               ".out2.part", "out"}));
  EXPECT_FALSE(remove_leftovers(target(), WithoutLocks::refuse).removed);
}

TEST_F(PublishTest, AnOldCheckpointWithoutItsNameGetsItBack) {
  leave(this_boot_id(), 10);
  fs::create_directory(old_of(target(), token));
  put(old_of(target(), token) / "old", "old");
  Cleaned const cleaned = remove_leftovers(target(), WithoutLocks::refuse);
  EXPECT_TRUE(cleaned.put_back && cleaned.removed);
  EXPECT_EQ(names(), std::vector<std::string>{"out"});
  EXPECT_EQ(text_of(target() / "old"), "old");
}

TEST_F(PublishTest, AnOldCheckpointOfAnEarlierVersionGetsItsNameBackToo) {
  fs::create_directory(scratch_.path() / ".out.old");
  EXPECT_TRUE(remove_leftovers(target(), WithoutLocks::refuse).put_back);
  EXPECT_EQ(names(), std::vector<std::string>{"out"});
  fs::create_directory(scratch_.path() / ".out.old");  // beside a target it may be anything
  EXPECT_FALSE(remove_leftovers(target(), WithoutLocks::refuse).removed);
}

TEST_F(PublishTest, ALinkInThePlaceOfTheLockIsNotFollowed) {
  fs::path const elsewhere = scratch_.path() / "elsewhere";
  fs::create_symlink(elsewhere, lock_of(target()));
  EXPECT_TRUE(error_of([&] { Publication(target(), ExistingTarget::refuse); }));
  EXPECT_FALSE(is_there(elsewhere));
}

TEST_F(PublishTest, TheLockOfAnotherJobIsLeftToIt) {
  {
    TargetLock const first(target(), "first");
    put(lock_of(target()), "second");  // as where locks are those of one machine
  }
  EXPECT_TRUE(is_there(lock_of(target())));
}

TEST_F(PublishTest, ANameThatLeavesNoRoomForThoseOfARunIsRefusedByAPlanToo) {
  long const longest = ::pathconf(target().parent_path().c_str(), _PC_NAME_MAX);
  ASSERT_GT(longest, 64);
  auto const refusal = [&](std::size_t letters) {
    auto const error = capture([&] {
      look_at_place(target().parent_path() / std::string(letters, 'n'), ExistingTarget::refuse);
    });
    return error ? error->sentence() : std::string();
  };
  EXPECT_EQ(refusal(static_cast<std::size_t>(longest) - 64), "");
  EXPECT_NE(refusal(static_cast<std::size_t>(longest)).find("longer than the target's"),
            std::string::npos);
}

TEST_F(PublishTest, AFolderWhoseNamesNobodyMayReadIsRefusedBeforeAnythingIsWritten) {
  bool const is_root = ::geteuid() == 0;  // whom permissions do not hold back
  constexpr uid_t other_user = 65534;
  if (is_root) {
    ASSERT_EQ(::chown(scratch_.path().c_str(), other_user, static_cast<gid_t>(-1)), 0);
    ASSERT_EQ(::seteuid(other_user), 0);
  }
  ::chmod(scratch_.path().c_str(), 0300);
  auto const error = error_of([&] { Publication(target(), ExistingTarget::refuse); });
  ::chmod(scratch_.path().c_str(), 0700);
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::target);
  EXPECT_NE(error->sentence().find("cannot be listed"), std::string::npos) << error->sentence();
  EXPECT_TRUE(names().empty());
}

/// In a sticky folder only the owner of a name may change it.
TEST_F(PublishTest, AnothersTargetInAStickyFolderIsRefusedBeforeAnythingIsWritten) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs two users, so root";
  old_checkpoint();
  ::chmod(scratch_.path().c_str(), 01777);
  ASSERT_EQ(::seteuid(65534), 0);
  auto const error = error_of([&] { Publication(target(), ExistingTarget::replace); });
  ASSERT_EQ(::seteuid(0), 0);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::target);
  EXPECT_NE(error->sentence().find("sticky"), std::string::npos) << error->sentence();
  EXPECT_EQ(names(), std::vector<std::string>{"out"});
}

TEST_F(PublishTest, AKeptFolderSaysThatItsRunHasEnded) {
  std::string own;
  {
    Publication publication(target(), ExistingTarget::refuse);
    publication.start_afresh();
    publication.keep(true);
    own = publication.token();
  }
  auto const owner = read_owner(journal_of(target(), own));
  ASSERT_TRUE(owner);
  EXPECT_TRUE(owner->ended);
  EXPECT_EQ(owner->token, own);
}

}  // namespace
}  // namespace reshard
