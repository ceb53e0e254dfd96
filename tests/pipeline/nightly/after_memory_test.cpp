#include "pipeline/nightly/after_memory.hpp"

#include <filesystem>

#include <gtest/gtest.h>

#include "core/base/files/file.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

TEST(AfterMemory, IsOfOneRecord) {
  ScratchFolder const scratch("after_memory");
  fs::path const target = scratch.path() / "iter_0000001";
  fs::create_directories(target);
  EXPECT_FALSE(after_has_succeeded(target));
  write_text_file(target / "reshard.json", "one");
  EXPECT_FALSE(after_has_succeeded(target));
  remember_after(target);
  EXPECT_TRUE(after_has_succeeded(target));
  write_text_file(target / "reshard.json", "another");
  EXPECT_FALSE(after_has_succeeded(target));
  write_text_file(target / "reshard.json", "one");
  EXPECT_TRUE(after_has_succeeded(target));
  forget_after(target);
  EXPECT_FALSE(after_has_succeeded(target));
  EXPECT_FALSE(fs::exists(after_memory_of(target)));
}

TEST(AfterMemory, OfAnotherProgramIsLeftAlone) {
  ScratchFolder const scratch("after_foreign");
  fs::path const target = scratch.path() / "iter_0000001";
  write_text_file(after_memory_of(target), "my notes");
  forget_after(target);
  EXPECT_TRUE(fs::exists(after_memory_of(target)));
  EXPECT_FALSE(after_has_succeeded(target));
}

TEST(AfterMemory, NamesItsTarget) {
  EXPECT_EQ(after_memory_of("/serving/iter_1.5"), fs::path("/serving/.iter_1.5.after"));
  EXPECT_EQ(target_of_memory(".iter_1.5.after"), "iter_1.5");
  for (char const* other : {"iter.after", ".after", "..after.lock", ".iter.removed"})
    EXPECT_EQ(target_of_memory(other), std::nullopt) << other;
}

}  // namespace
}  // namespace reshard
