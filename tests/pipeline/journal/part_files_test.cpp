#include "pipeline/journal/part_files.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::vector<std::size_t> sorted(std::vector<std::size_t> parts) {
  std::ranges::sort(parts);
  return parts;
}

TEST(PartFiles, GiveEachPartToWhoAsksFirst) {
  ScratchFolder const scratch("part_files");
  JournalFolder const folder(scratch.path());
  PartFiles first(folder, 3);
  PartFiles second(folder, 3);
  EXPECT_TRUE(first.claim(0));
  EXPECT_TRUE(second.claim(31));
  EXPECT_FALSE(second.claim(0));
  EXPECT_FALSE(first.claim(31));
  EXPECT_FALSE(first.claim(0)) << "not twice";
  EXPECT_EQ(sorted(first.claimed()), (std::vector<std::size_t>{0, 31}));
  EXPECT_EQ(sorted(second.claimed()), (std::vector<std::size_t>{0, 31}));
}

TEST(PartFiles, OfAnotherRunAndOtherFilesMeanNothing) {
  ScratchFolder const scratch("part_files");
  JournalFolder const folder(scratch.path());
  PartFiles earlier(folder, 3);
  EXPECT_TRUE(earlier.claim(5));
  for (char const* name :
       {"0004-00007", "0004.base", "0004.claim-", "0004.claim-x", "0004.claim-7x"})
    write_text_file(scratch.path() / name, "");
  PartFiles now(folder, 4);
  EXPECT_TRUE(now.claimed().empty());
  EXPECT_TRUE(now.claim(5));
  EXPECT_EQ(now.claimed(), (std::vector<std::size_t>{5}));
}

TEST(PartFiles, ARankRemovesItsOwn) {
  ScratchFolder const scratch("part_files");
  JournalFolder const folder(scratch.path());
  PartFiles first(folder, 0);
  PartFiles second(folder, 0);
  EXPECT_TRUE(first.claim(1));
  EXPECT_TRUE(second.claim(2));
  first.remove();
  EXPECT_EQ(second.claimed(), (std::vector<std::size_t>{2}));
  second.remove();
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(PartFiles, AFolderThatIsGoneIsAnError) {
  ScratchFolder const scratch("part_files");
  PartFiles files(JournalFolder(scratch.path() / "gone"), 0);
  for (auto const& error : {capture([&] { files.claim(0); }), capture([&] { files.claimed(); })}) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::io);
    EXPECT_NE(error->sentence().find("run again"), std::string::npos) << error->sentence();
  }
}

}  // namespace
}  // namespace reshard
