#include "core/base/paths.hpp"

#include <gtest/gtest.h>

#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

TEST(Paths, OneFormForEverySpelling) {
  for (char const* const spelling : {"/a/b", "/a/b/", "/a//b", "/a/./b", "/a/c/../b/", "//a/b/."})
    EXPECT_EQ(full_path(spelling), "/a/b") << spelling;
  EXPECT_EQ(normal_path("a/b/"), "a/b");
  EXPECT_EQ(normal_path("./a/../b"), "b");
  EXPECT_EQ(normal_path("/"), "/");
  EXPECT_EQ(normal_path(""), "");
  EXPECT_EQ(full_path("a/"), fs::current_path() / "a");
}

TEST(Paths, LinksAreFollowedAsFarAsThePathExists) {
  ScratchFolder const folder("paths");
  fs::path const real = fs::canonical(folder.path());
  fs::create_directories(real / "there");
  fs::create_symlink("there", real / "link");
  EXPECT_EQ(resolved_path(folder.path() / "link/new/"), real / "there" / "new");
  EXPECT_EQ(resolved_path(folder.path() / "link/"), real / "there");
  EXPECT_EQ(full_path(real / "link/"), real / "link");
}

TEST(Paths, ALinkToItselfIsAProblemAndStaysAsItIs) {
  ScratchFolder const folder("paths_loop");
  fs::path const loop = folder.path() / "loop";
  fs::create_symlink("loop", loop);
  std::error_code problem;
  EXPECT_EQ(resolved_path(loop / "x/", problem), full_path(loop / "x"));
  EXPECT_EQ(problem, std::errc::too_many_symbolic_link_levels);
}

TEST(Paths, AFolderHoldsItselfAndWhatLiesBelow) {
  EXPECT_TRUE(holds("/a/b", "/a/b"));
  EXPECT_TRUE(holds("/a/b", "/a/b/c"));
  EXPECT_TRUE(holds("/", "/a"));
  EXPECT_FALSE(holds("/a/b", "/a"));
  EXPECT_FALSE(holds("/a/b", "/a/bc"));
}

}  // namespace
}  // namespace reshard
