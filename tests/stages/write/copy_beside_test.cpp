#include "stages/write/copy_beside.hpp"

#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/transport/comm.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

class CopyBeside : public testing::Test {
 protected:
  fs::path at(std::string const& name) const { return scratch_.path() / name; }
  void write(std::string const& name, std::string const& text) const {
    fs::create_directories(at(name).parent_path());
    std::ofstream(at(name), std::ios::binary) << text;
  }
  std::string read(std::string const& name) const {
    std::ifstream in(at(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::optional<ErrorKind> refusal(std::string const& from) const {
    auto const error = capture([&] { copy_beside(at(from), at("to") / from); });
    return error ? std::optional(error->kind()) : std::nullopt;
  }

  ScratchFolder scratch_{"copy_beside"};
};

TEST_F(CopyBeside, AFileArrivesInANewFolderWhateverItsSize) {
  constexpr std::size_t block = std::size_t{4} << 20;
  for (std::size_t const size : {std::size_t{0}, std::size_t{5}, block - 1, block, block + 1}) {
    std::string text(size, '\0');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 7 + i / 251);
    write("file", text);
    copy_beside(at("file"), at(fmt::format("new/{}/file", size)));
    EXPECT_EQ(read(fmt::format("new/{}/file", size)) == text, true) << size;
  }
}

TEST_F(CopyBeside, AFolderArrivesWithAllThatIsInIt) {
  write("from/a.json", "a");
  write("from/b/c/d.json", "d");
  write("from/b/e.json", "e");
  fs::create_directories(at("from/empty"));
  copy_beside(at("from"), at("to"));
  EXPECT_EQ(read("to/a.json"), "a");
  EXPECT_EQ(read("to/b/c/d.json"), "d");
  EXPECT_EQ(read("to/b/e.json"), "e");
  EXPECT_TRUE(fs::is_directory(at("to/empty")));
}

TEST_F(CopyBeside, LinksAndPipesDoNotTravel) {
  write("secret", "s");
  fs::create_symlink(at("secret"), at("link"));
  fs::create_directories(at("folder"));
  fs::create_symlink(at("secret"), at("folder/link"));
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_EQ(refusal("link"), ErrorKind::source);
  EXPECT_EQ(refusal("folder"), ErrorKind::source);
  EXPECT_EQ(refusal("pipe"), ErrorKind::source);
  EXPECT_EQ(refusal("nothing"), ErrorKind::source);
  EXPECT_FALSE(fs::exists(at("to/folder/link")));
}

TEST_F(CopyBeside, ThirtyOneFoldersInEachOtherAreEnough) {
  std::string deep = "from";
  for (int depth = 0; depth < 31; ++depth) deep += "/d";
  fs::create_directories(at(deep));
  EXPECT_EQ(refusal("from"), std::nullopt);
  EXPECT_TRUE(fs::is_directory(at("to") / deep));
  fs::create_directories(at(deep + "/d"));
  EXPECT_EQ(refusal("from"), ErrorKind::source);
}

}  // namespace
}  // namespace reshard
