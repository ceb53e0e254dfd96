#include "pipeline/publication/small_files.hpp"

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

class SmallFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    make_folders(staging_);
    make_folders(source_ / "tokenizer");
    write_text_file(source_ / "notes.txt", "notes");
    write_text_file(source_ / "tokenizer" / "vocab", "a b c");
    draft_.side_copies = {{source_ / "notes.txt", "more/notes.txt"},
                          {source_ / "tokenizer", "tokenizer"}};
    draft_.texts = {{"tracker", "7", true, {}}, {"config.json", "{}", false, {}}};
    draft_.texts.push_back({"index.json", "", false, [] { return std::string("made late"); }});
  }
  std::string text(fs::path const& path) const { return read_text_file(staging_ / path, 100); }

  ScratchFolder scratch_{"small_files"};
  fs::path staging_ = scratch_.path() / "staging";
  fs::path source_ = scratch_.path() / "source";
  TargetDraft draft_;
};

TEST_F(SmallFilesTest, AreWrittenAndRecorded) {
  auto const records = write_small_files(draft_, staging_);
  EXPECT_EQ(text("more/notes.txt"), "notes");
  EXPECT_EQ(text("tokenizer/vocab"), "a b c");
  EXPECT_EQ(text("index.json"), "made late");
  std::vector<std::string> paths;
  for (FileRecord const& one : records) paths.push_back(one.path);
  // What makes the checkpoint count comes last.
  EXPECT_EQ(paths, (std::vector<std::string>{"more/notes.txt", "tokenizer/vocab", "config.json",
                                             "index.json", "tracker"}));
  EXPECT_FALSE(capture([&] { check_small_files(records, staging_); }));
}

TEST_F(SmallFilesTest, OneThatWasChangedIsNamed) {
  auto const records = write_small_files(draft_, staging_);
  write_text_file(staging_ / "config.json", "[]");
  auto const error = capture([&] { check_small_files(records, staging_); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::self_check);
  EXPECT_NE(error->sentence().find("config.json: has 2 bytes"), std::string::npos)
      << error->sentence();
}

TEST_F(SmallFilesTest, ANameThatNoRecordCanHoldIsRefused) {
  draft_.texts.push_back({"note\xff.txt", "text", false, {}});
  test::expect_refused(ErrorKind::source, "the name of this file beside the weights is not UTF-8",
                       [&] { (void)write_small_files(draft_, staging_); });
}

}  // namespace
}  // namespace reshard
