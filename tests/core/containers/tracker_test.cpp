#include "core/containers/tracker.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

TEST(Tracker, ANumberOrRelease) {
  EXPECT_EQ(step_of_tracker("100"), (SaveStep{.iteration = 100}));
  EXPECT_EQ(step_of_tracker(" \t007\r\n\v\f"), (SaveStep{.iteration = 7}));
  EXPECT_EQ(step_of_tracker("release\n"), (SaveStep{.release = true}));
  EXPECT_EQ(step_of_tracker(tracker_text(INT64_MAX)), (SaveStep{.iteration = INT64_MAX}));
  for (char const* const text :
       {"", " \n", "-1", "+1", "1 2", "1.0", "0x10", "Release", "releases", "9223372036854775808"})
    EXPECT_EQ(step_of_tracker(text), std::nullopt) << text;
}

/// The sentence of the error that reading a tracker ends with.
std::string refusal(ScratchFolder const& folder) {
  try {
    read_tracker(folder.path(), "give a folder");
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    return error.sentence();
  }
  return "";
}

TEST(Tracker, IsReadFromItsRoot) {
  ScratchFolder const folder("tracker");
  write_text_file(folder.path() / tracker_name, "42\n");
  EXPECT_EQ(read_tracker(folder.path(), "").iteration, 42);
  write_text_file(folder.path() / tracker_name, "\x1b[31m soon");
  EXPECT_EQ(refusal(folder), (folder.path() / tracker_name).string() +
                                 ": expected an iteration number or the word \"release\", found "
                                 "\"\\u001b[31m soon\". Correct it, or give a folder.");
  write_text_file(folder.path() / tracker_name, std::string(largest_tracker_bytes + 1, '1'));
  EXPECT_NE(refusal(folder).find("4097 bytes"), std::string::npos) << refusal(folder);
}

TEST(Tracker, ALinkOutOfItsRootIsRefused) {
  ScratchFolder const folder("tracker_link");
  ScratchFolder const other("tracker_other");
  write_text_file(other.path() / "step", "42");
  std::filesystem::create_symlink(other.path() / "step", folder.path() / tracker_name);
  EXPECT_NE(refusal(folder).find("points outside the folder"), std::string::npos)
      << refusal(folder);
}

}  // namespace
}  // namespace reshard
