#include "core/base/member_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// checkpoint/{plain, deep/plain}, and beside it other/plain.
class MemberFile : public testing::Test {
 protected:
  MemberFile() {
    fs::create_directories(root_ / "deep");
    fs::create_directories(scratch_.path() / "other");
    for (fs::path const& path :
         {root_ / "plain", root_ / "deep" / "plain", scratch_.path() / "other" / "plain"})
      write_text_file(path, "x");
  }

  /// What a link in the checkpoint that points to `target` leads to.
  MemberKind through(fs::path const& target, fs::path const& below = "") {
    fs::remove(root_ / "link");
    fs::create_symlink(target, root_ / "link");
    return member_kind(root_, below.empty() ? "link" : "link" / below);
  }

  ScratchFolder scratch_{"member_file"};
  fs::path root_ = scratch_.path() / "checkpoint";
};

TEST_F(MemberFile, WithoutLinksTheKindIsThatOfThePath) {
  EXPECT_EQ(member_kind(root_, "plain"), MemberKind::file);
  EXPECT_EQ(member_kind(root_, "deep/plain"), MemberKind::file);
  EXPECT_EQ(member_kind(root_, "deep"), MemberKind::not_regular);
  EXPECT_EQ(member_kind(root_, "absent"), MemberKind::missing);
  EXPECT_EQ(member_kind(root_, "plain/below"), MemberKind::missing);
  ASSERT_EQ(::mkfifo((root_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(member_kind(root_, "pipe"), MemberKind::not_regular);
}

TEST_F(MemberFile, LinksInsideTheFolderAreFollowed) {
  EXPECT_EQ(through("plain"), MemberKind::file);
  EXPECT_EQ(through("deep/plain"), MemberKind::file);
  EXPECT_EQ(through(root_ / "plain"), MemberKind::file);
  EXPECT_EQ(through("../checkpoint/plain"), MemberKind::file);
  EXPECT_EQ(through("deep", "plain"), MemberKind::file);
  EXPECT_EQ(through("deep"), MemberKind::not_regular);
  EXPECT_EQ(through("absent"), MemberKind::missing);
  EXPECT_EQ(through("link"), MemberKind::missing);
}

TEST_F(MemberFile, LinksOutOfTheFolderAreOutside) {
  EXPECT_EQ(through("../other/plain"), MemberKind::outside);
  EXPECT_EQ(through("../other", "plain"), MemberKind::outside);
  EXPECT_EQ(through("/etc/passwd"), MemberKind::outside);
  EXPECT_EQ(through(".."), MemberKind::outside);
  EXPECT_EQ(through("../checkpoint"), MemberKind::outside);
  // A second link decides, not the first one; nor does a name that only begins alike.
  fs::create_symlink("../other/plain", root_ / "second");
  EXPECT_EQ(through("second"), MemberKind::outside);
  fs::create_directories(scratch_.path() / "checkpoint-2");
  write_text_file(scratch_.path() / "checkpoint-2" / "plain", "x");
  EXPECT_EQ(through("../checkpoint-2/plain"), MemberKind::outside);
}

TEST_F(MemberFile, TheFolderItselfMayBeALink) {
  fs::create_directory_symlink(root_, scratch_.path() / "latest");
  fs::create_symlink("plain", root_ / "link");
  EXPECT_EQ(member_kind(scratch_.path() / "latest", "plain"), MemberKind::file);
  EXPECT_EQ(member_kind(scratch_.path() / "latest", "link"), MemberKind::file);
  EXPECT_EQ(member_kind(scratch_.path() / "latest/", "deep/plain"), MemberKind::file);
}

TEST_F(MemberFile, TheFolderThatTheUserNamedMayHoldWhatAFolderInItLinksTo) {
  fs::create_symlink("../../other/plain", root_ / "deep" / "link");
  EXPECT_EQ(member_kind(root_ / "deep", "link"), MemberKind::outside);
  EXPECT_EQ(member_kind(root_ / "deep", "link", root_), MemberKind::outside);
  EXPECT_EQ(member_kind(root_ / "deep", "link", scratch_.path()), MemberKind::file);
}

TEST_F(MemberFile, TheBlobsOfAHuggingFaceCacheAreInside) {
  fs::path const snapshot = root_ / "snapshots" / "0123abc";
  fs::create_directories(snapshot / "sub");
  fs::create_directories(root_ / "blobs");
  write_text_file(root_ / "blobs" / "f00d", "x");
  fs::create_symlink("../../blobs/f00d", snapshot / "model");
  fs::create_symlink("../../../blobs/f00d", snapshot / "sub" / "model");
  fs::create_symlink("../../plain", snapshot / "other");
  EXPECT_EQ(member_kind(snapshot, "model"), MemberKind::file);
  EXPECT_EQ(member_kind(snapshot / "sub", "model"), MemberKind::file);
  EXPECT_EQ(member_kind(snapshot, "other"), MemberKind::outside);
}

TEST_F(MemberFile, RefusalsNameTheFolderAndTheLink) {
  auto const refusal = [](auto call) {
    try {
      call();
    } catch (Error const& error) {
      return fmt::format("{}: {}", exit_code(error.kind()), error.sentence());
    }
    return std::string();
  };
  through("/etc/passwd");
  std::string const outside = fmt::format(
      "3: {}: link is a symbolic link that points outside the folder. ", root_.string());
  EXPECT_EQ(refusal([&] { readable_member(root_, "link"); }).find(outside), 0U);
  EXPECT_EQ(refusal([&] { allowed_member(root_, "link"); }).find(outside), 0U);
  EXPECT_EQ(allowed_member(root_, "absent"), root_ / "absent");
  EXPECT_NE(refusal([&] { readable_member(root_, "absent"); }).find("is missing"),
            std::string::npos);
  fs::create_directory(root_ / "folder");
  EXPECT_NE(refusal([&] {
              readable_member(root_, "folder");
            }).find("folder is not a regular file. Put a copy of the file in its place."),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              member_names(root_ / "nowhere");
            }).find("nowhere: cannot be listed: No such file or directory."),
            std::string::npos);
  fs::create_symlink("/etc/passwd", root_ / "a\033[2Jb");
  EXPECT_EQ(refusal([&] { allowed_member(root_, "a\033[2Jb"); }).find('\033'), std::string::npos);
}

}  // namespace
}  // namespace reshard
