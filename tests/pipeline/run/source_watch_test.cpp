#include "pipeline/run/checks/source_watch.hpp"

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/formats/headers/stamped_files.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

/// A source of two files, as they are now.
Checkpoint source_in(std::filesystem::path const& folder) {
  Checkpoint source;
  for (char const* name : {"a", "b"}) {
    write_text_file(folder / name, "bytes");
    source.files.push_back(folder / name);
    source.stamps.taken.push_back(stamp_of(source.files.back()));
  }
  return source;
}

TEST(SourceWatch, AFileThatIsAsItWasIsFine) {
  ScratchFolder const scratch("source_watch");
  Checkpoint const source = source_in(scratch.path());
  std::map<std::filesystem::path, FileStamp> const none;
  SourceWatch const watch(source, none);
  for (std::size_t f = 0; f < 2; ++f) watch.look(f, stamp_of(source.files[f]));
  EXPECT_FALSE(watch.has_changed());
}

TEST(SourceWatch, AChangeIsAnErrorThatNamesTheFile) {
  ScratchFolder const scratch("source_watch");
  Checkpoint const source = source_in(scratch.path());
  std::map<std::filesystem::path, FileStamp> const none;
  SourceWatch const watch(source, none);
  write_text_file(source.files[1], "other bytes");
  auto const error = capture([&] { watch.look(1, stamp_of(source.files[1])); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_TRUE(error->sentence().starts_with(source.files[1].string() + ": changed"))
      << error->sentence();
  EXPECT_TRUE(watch.has_changed());
}

TEST(SourceWatch, ASetOfFilesIsLookedAtWhenItOpensThem) {
  ScratchFolder const scratch("source_watch");
  Checkpoint const source = source_in(scratch.path());
  std::map<std::filesystem::path, FileStamp> const none;
  SourceWatch const watch(source, none);
  FileSet files(source.files, FileSet::Access::read);
  watch.look_at(files);
  (void)files.open(0);
  write_text_file(source.files[1], "other bytes");
  EXPECT_FALSE(watch.has_changed());
  EXPECT_TRUE(capture([&] { (void)files.open(1); }));
  EXPECT_TRUE(watch.has_changed());
}

}  // namespace
}  // namespace reshard
