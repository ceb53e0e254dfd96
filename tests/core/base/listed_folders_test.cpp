#include "core/base/files/listed_folders.hpp"

#include <gtest/gtest.h>

#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/files/tree.hpp"
#include "core/base/member_file.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// checkpoint/{plain, deep/plain, link -> ../other, gone -> nothing} beside other/plain.
class ListedFoldersTest : public testing::Test {
 protected:
  ListedFoldersTest() {
    fs::create_directories(root_ / "deep");
    fs::create_directories(scratch_.path() / "other");
    for (fs::path const& path :
         {root_ / "plain", root_ / "deep" / "plain", scratch_.path() / "other" / "plain"})
      write_text_file(path, "x");
    fs::create_symlink("../other", root_ / "link");
    fs::create_symlink("nothing", root_ / "gone");
  }

  ScratchFolder scratch_{"listed_folders"};
  fs::path root_ = scratch_.path() / "checkpoint";
};

TEST_F(ListedFoldersTest, WithoutAScopeNothingIsKnown) {
  EXPECT_FALSE(listed_type(root_ / "plain"));
  EXPECT_FALSE(is_listed_folder(root_));
}

TEST_F(ListedFoldersTest, AnswersFromOneListing) {
  ListedFolders const scope(root_ / "");
  EXPECT_TRUE(sees_file(root_ / "plain"));
  EXPECT_FALSE(sees_anything(root_ / "later"));
  write_text_file(root_ / "later", "x");
  EXPECT_FALSE(sees_anything(root_ / "later"));
  EXPECT_EQ(member_kind(root_, "later"), MemberKind::missing);
  EXPECT_TRUE(sees_folder(root_));
  EXPECT_TRUE(sees_folder(root_ / "deep"));
  EXPECT_FALSE(sees_file(root_ / "deep"));
}

TEST_F(ListedFoldersTest, AsksTheFileSystemAgainAfterTheScope) {
  {
    ListedFolders const scope(root_);
    EXPECT_FALSE(sees_file(root_ / "later"));
  }
  write_text_file(root_ / "later", "x");
  EXPECT_TRUE(sees_file(root_ / "later"));
}

TEST_F(ListedFoldersTest, LinksAreFollowedAsWithoutAListing) {
  ListedFolders const scope(root_);
  EXPECT_TRUE(sees_folder(root_ / "link"));
  EXPECT_TRUE(sees_file(root_ / "link" / "plain"));
  EXPECT_FALSE(sees_anything(root_ / "gone"));
  EXPECT_EQ(listed_type(root_ / "link"), fs::file_type::symlink);
  EXPECT_EQ(member_names(root_ / "link"), std::vector<std::string>{"plain"});
  EXPECT_EQ(member_kind(root_, "link/plain"), MemberKind::outside);
  std::vector<fs::path> const both = {"link/plain", "plain"};
  EXPECT_EQ(member_kinds(root_, both),
            (std::vector<MemberKind>{MemberKind::outside, MemberKind::file}));
}

TEST_F(ListedFoldersTest, FoldersBelowAreKnownOnceTheyAreListed) {
  ListedFolders const scope(root_);
  EXPECT_FALSE(sees_file(root_ / "deep" / "later"));
  write_text_file(root_ / "deep" / "later", "x");
  EXPECT_TRUE(sees_file(root_ / "deep" / "later"));
  EXPECT_EQ(member_names(root_ / "deep"), (std::vector<std::string>{"later", "plain"}));
  fs::remove(root_ / "deep" / "later");
  EXPECT_TRUE(sees_file(root_ / "deep" / "later"));
}

TEST_F(ListedFoldersTest, NothingLiesBelowWhatIsNotListed) {
  ListedFolders const scope(root_);
  EXPECT_FALSE(sees_file(root_ / "absent" / "plain"));
  fs::create_directory(root_ / "absent");
  write_text_file(root_ / "absent" / "plain", "x");
  EXPECT_FALSE(sees_file(root_ / "absent" / "plain"));
  EXPECT_FALSE(sees_anything(root_ / "plain" / "below"));
  EXPECT_TRUE(sees_file(root_ / "deep" / "plain"));
}

TEST_F(ListedFoldersTest, TheOutermostScopeKeepsWhatIsLearnt) {
  ListedFolders const outer(root_);
  {
    ListedFolders const inner(root_);
    EXPECT_FALSE(sees_file(root_ / "later"));
    EXPECT_EQ(member_names(root_ / "deep"), std::vector<std::string>{"plain"});
  }
  write_text_file(root_ / "later", "x");
  write_text_file(root_ / "deep" / "later", "x");
  EXPECT_FALSE(sees_file(root_ / "later"));
  EXPECT_FALSE(sees_file(root_ / "deep" / "later"));
}

TEST_F(ListedFoldersTest, AKnownListingOfAFolderBelowIsUsed) {
  KnownListings const known;
  ListedFolders const scope(root_);
  std::error_code problem;
  EXPECT_EQ(known_listing_of(root_ / "deep", problem).size(), 1U);
  write_text_file(root_ / "deep" / "later", "x");
  EXPECT_FALSE(sees_file(root_ / "deep" / "later"));
}

TEST_F(ListedFoldersTest, ATextIsReadOnce) {
  int reads = 0;
  auto const read = [&] { return std::to_string(++reads); };
  {
    ListedFolders const scope(root_);
    EXPECT_EQ(text_once(root_ / "plain", read), "1");
    EXPECT_EQ(text_once(root_ / "plain", read), "1");
    EXPECT_EQ(text_once(scratch_.path() / "other" / "plain", read), "2");
  }
  EXPECT_EQ(text_once(root_ / "plain", read), "3");
}

TEST_F(ListedFoldersTest, AFolderThatCannotBeListedIsAskedAboutByName) {
  ListedFolders const of_file(root_ / "plain");
  EXPECT_TRUE(sees_file(root_ / "plain"));
  EXPECT_FALSE(sees_anything(root_ / "plain" / "below"));
  ListedFolders const of_nothing(root_ / "absent");
  EXPECT_FALSE(sees_folder(root_ / "absent"));
  std::error_code problem;
  EXPECT_TRUE(names_in(root_ / "absent", problem).empty());
  EXPECT_EQ(problem, std::errc::no_such_file_or_directory);
}

}  // namespace
}  // namespace reshard
