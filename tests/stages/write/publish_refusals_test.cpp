// What keeps a job from a target's place, its lock or its name: each sentence, by the smallest
// reason for it.

#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/transport/comm.hpp"
#include "stages/write/publish.hpp"
#include "stages/write/target_place.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/other_user.hpp"
#include "tests/support/planted_call.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using test::expect_refused;
using test::PlantedCall;

constexpr char token[] = "0123456789abcdef";

class PublishRefuses : public testing::Test {
 protected:
  fs::path target() const { return scratch_.path() / "out"; }
  static void put(fs::path const& path, std::string const& text) { std::ofstream(path) << text; }
  void claim(ExistingTarget existing = ExistingTarget::refuse) const {
    Publication(target(), existing).start_afresh();
  }
  void old_checkpoint() const {
    fs::create_directory(target());
    put(target() / "old", "old");
  }
  /// What a run of this machine has left a moment ago.
  void leave() const {
    fs::create_directory(journal_of(target(), token));
    fs::create_directory(staging_of(target(), token));
    write_owner(journal_of(target(), token), {token, this_boot_id(), "node7", false});
  }

  ScratchFolder scratch_{"publish_refuses"};
};

TEST_F(PublishRefuses, PlacesThatNoTargetCanHave) {
  expect_refused(ErrorKind::target, "/: cannot be a target. Name a folder below it",
                 [] { Publication("/", ExistingTarget::refuse); });
  expect_refused(ErrorKind::target, "/proc: is a mount point, or on another file system",
                 [] { Publication("/proc", ExistingTarget::replace); });
  put(target(), "a file");
  expect_refused(ErrorKind::target, "out: exists and is not a directory",
                 [&] { claim(ExistingTarget::replace); });
  expect_refused(ErrorKind::usage, "the path of the target is empty",
                 [] { remove_leftovers("", WithoutLocks::refuse); });
  expect_refused(ErrorKind::target, "no: is not there. Check the path of the target",
                 [&] { remove_leftovers(scratch_.path() / "no" / "out", WithoutLocks::refuse); });
}

TEST_F(PublishRefuses, FoldersWhoseNamesItCannotRead) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs two users, so root";
  ASSERT_EQ(::chown(scratch_.path().c_str(), 65534, static_cast<gid_t>(-1)), 0);
  ::chmod(scratch_.path().c_str(), 0300);
  {
    test::AsOtherUser const user;
    expect_refused(ErrorKind::target, "The folder of a target must be readable",
                   [&] { look_at_place(target(), ExistingTarget::refuse); });
    expect_refused(ErrorKind::target, "The folder of a target must be readable", [&] { claim(); });
    expect_refused(ErrorKind::target, "cannot be listed: Permission denied. Check the folder",
                   [&] { (void)leftovers_of(target()); });
  }
  ::chmod(scratch_.path().c_str(), 0700);
}

TEST_F(PublishRefuses, AnothersTargetInAStickyFolder) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs two users, so root";
  old_checkpoint();
  ::chmod(scratch_.path().c_str(), 01777);
  test::AsOtherUser const user;
  expect_refused(ErrorKind::target, "belongs to user 0, and its folder lets only the owner",
                 [&] { claim(ExistingTarget::replace); });
}

TEST_F(PublishRefuses, ALockThatItCannotGet) {
  {
    TargetLock const first(target(), "first");
    expect_refused(ErrorKind::target, "another job is writing this target (", [&] { claim(); });
  }
  {
    PlantedCall const broken("flock", ".lock", EIO);
    expect_refused(ErrorKind::io, "cannot be locked: Input/output error", [&] { claim(); });
  }
  PlantedCall const taken_away("flock", ".lock", [](std::string const& path) {
    fs::remove(path);
    return PlantedCall::is_made;
  });
  expect_refused(ErrorKind::target, "the lock keeps changing owners", [&] { claim(); });
}

TEST_F(PublishRefuses, WhatARunMayBeWritingWhereThereAreNoLocks) {
  PlantedCall const without_locks("flock", ".lock", ENOSYS);
  {
    Publication early(target(), ExistingTarget::refuse);
    leave();
    expect_refused(ErrorKind::target,
                   "another job has started to write this target at the same time",
                   [&] { early.start_afresh(); });
  }
  expect_refused(ErrorKind::target,
                 "another job may be writing this target: its file system has no locks, and",
                 [&] { claim(); });
  expect_refused(ErrorKind::target, "s ago by a run on node7, and a run counts as ended only after",
                 [&] { claim(); });
  expect_refused(ErrorKind::target, "its file system has no locks, so a run may be writing it",
                 [&] { remove_leftovers(target(), WithoutLocks::refuse); });
}

TEST_F(PublishRefuses, WhatAnotherJobTakesMeanwhile) {
  {
    PlantedCall const without_locks("flock", ".lock", ENOSYS);
    leave();
    write_owner(journal_of(target(), token), {token, this_boot_id(), "node7", true});
    PlantedCall const gone("rename", std::string(".part-") + token, ENOENT);
    expect_refused(ErrorKind::target, "another job has just taken it", [&] { claim(); });
  }
  PlantedCall const stays("rename", std::string(".part-") + token, PlantedCall::succeeds);
  Publication next(target(), ExistingTarget::refuse);
  expect_refused(ErrorKind::target, "no longer exists: another job has taken it",
                 [&] { next.go_on(journal_of(target(), token), staging_of(target(), token)); });
}

TEST_F(PublishRefuses, NamesThatCannotBeChanged) {
  auto const claimed_with = [&](std::string const& part, int reason, ErrorKind kind,
                                std::string_view words) {
    PlantedCall const broken("rename", part, reason);
    expect_refused(kind, words, [&] { claim(); });
  };
  claimed_with(".part-", EACCES, ErrorKind::target,
               "it or its contents cannot be renamed: Permission denied");
  claimed_with(".part-", ENOSPC, ErrorKind::resources, "rename failed: No space left on device");
  leave();
  claimed_with(std::string(".part-") + token, EACCES, ErrorKind::target,
               "left by an earlier job, cannot be removed: Permission denied");
  claimed_with(std::string(".part-") + token, ENOSPC, ErrorKind::resources,
               ".part-0123456789abcdef: rename failed");
  fs::create_directory(old_of(target(), token));
  claimed_with(".old-", EACCES, ErrorKind::target,
               "is the checkpoint that an interrupted run was replacing, and cannot be renamed");
  PlantedCall const none("getrandom", "", EIO);
  expect_refused(ErrorKind::io, "getrandom: Input/output error", [&] { claim(); });
}

TEST_F(PublishRefuses, TheLastRename) {
  auto const publish = [&] {
    Publication publication(target(), ExistingTarget::replace);
    publication.start_afresh();
    publication.publish();
  };
  {
    PlantedCall const broken("renameat2", ".part-", EACCES);
    expect_refused(ErrorKind::target, "Nothing was published, and what was written is kept",
                   publish);
  }
  old_checkpoint();
  {
    PlantedCall const no_exchange("renameat2", ".part-", EINVAL);
    Publication publication(target(), ExistingTarget::replace);
    publication.start_afresh();
    PlantedCall const first("rename", ".part-", EACCES);
    PlantedCall const back("rename", ".old-", EACCES);
    expect_refused(ErrorKind::target, "and cannot be renamed back: Permission denied",
                   [&] { publication.publish(); });
  }
  Publication publication(target(), ExistingTarget::replace);
  publication.start_afresh();
  PlantedCall const broken("fsync", "", [&](std::string const& path) {
    return path == scratch_.path() ? EIO : PlantedCall::is_made;
  });
  expect_refused(ErrorKind::io,
                 "is complete and in place, but the system could not sync the rename",
                 [&] { publication.publish(); });
  EXPECT_TRUE(fs::exists(target()));
}

}  // namespace
}  // namespace reshard
