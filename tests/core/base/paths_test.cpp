#include "core/base/files/paths.hpp"

#include <gtest/gtest.h>

#include "core/base/files/tree.hpp"
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

TEST(Paths, ManyAreResolvedAsEachAlone) {
  ScratchFolder const folder("paths_many");
  fs::path const root = folder.path();
  fs::create_directories(root / "real" / "deep");
  std::vector<fs::path> paths{root, root / "none" / "file", root / "real" / "deep" / "lone"};
  for (int i = 0; i < 12; ++i) {
    fs::path const name = "file" + std::to_string(i);
    write_text_file(root / "real" / name, "x");
    paths.push_back(root / "real" / name);
  }
  fs::create_symlink("file3", root / "real" / "to_file");
  fs::create_symlink("real/deep", root / "to_deep");
  fs::create_symlink("to_deep", root / "twice");
  for (char const* const one : {"real/to_file", "real/none", "to_deep/../file1", "twice/lone",
                                "to_deep/..", "real/./file2", "real//file4", "real/", "to_deep"})
    paths.push_back(root / one);
  paths.emplace_back("relative/file");
  std::vector<std::string> const resolved = resolved_paths(paths);
  ASSERT_EQ(resolved.size(), paths.size());
  for (std::size_t i = 0; i < paths.size(); ++i)
    EXPECT_EQ(resolved[i], resolved_path(paths[i])) << paths[i];
}

TEST(Paths, ATreeIsListedWithoutFollowingLinks) {
  ScratchFolder const folder("paths_tree");
  fs::path const root = folder.path();
  for (char const* const name : {"b", "a/deep", "a/empty"}) fs::create_directories(root / name);
  write_text_file(root / "a" / "deep" / "file", "x");
  fs::create_symlink("a", root / "link");
  std::error_code problem;
  std::vector<std::pair<std::string, fs::file_type>> found;
  for (TreeEntry const& entry : tree_of(root, problem))
    found.emplace_back(entry.path.lexically_relative(root).string(), entry.type);
  EXPECT_FALSE(problem);
  using enum fs::file_type;
  EXPECT_EQ(found, (std::vector<std::pair<std::string, fs::file_type>>{{"a", directory},
                                                                       {"a/deep", directory},
                                                                       {"a/deep/file", regular},
                                                                       {"a/empty", directory},
                                                                       {"b", directory},
                                                                       {"link", symlink}}));
  EXPECT_TRUE(tree_of(root / "none", problem).empty());
  EXPECT_EQ(problem, std::errc::no_such_file_or_directory);
}

TEST(Paths, AFolderHoldsItselfAndWhatLiesBelow) {
  EXPECT_TRUE(holds("/a/b", "/a/b"));
  EXPECT_TRUE(holds("/a/b", "/a/b/c"));
  EXPECT_TRUE(holds("/", "/a"));
  EXPECT_FALSE(holds("/a/b", "/a"));
  EXPECT_FALSE(holds("/a/b", "/a/bc"));
}

TEST(Paths, HiddenFilesBesideOthersAreKnownByTheirNames) {
  EXPECT_EQ(hidden_beside("/a/b", ".verified"), "/a/.b.verified");
  EXPECT_EQ(hidden_beside("b", ".after"), ".b.after");
  EXPECT_EQ(hidden_for(".b.after", ".after"), "b");
  for (char const* const other : {"b.after", ".after", ".b.afterwards", "", ".b"})
    EXPECT_EQ(hidden_for(other, ".after"), std::nullopt) << other;
}

}  // namespace
}  // namespace reshard
