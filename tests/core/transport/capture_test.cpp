#include <filesystem>

#include <gtest/gtest.h>

#include "core/transport/comm.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// What a walk through folders throws when the system refuses one of its calls.
std::optional<Error> refused(char const* doing, int error_number) {
  return capture([&] {
    throw fs::filesystem_error(doing, "/data/.out.resume",
                               std::error_code(error_number, std::generic_category()));
  });
}

TEST(Capture, WhatTheSystemRefusesToAFolderWalkIsNoBugOfOurs) {
  auto const error = refused("cannot remove all", EIO);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_EQ(
      error->sentence(),
      "/data/.out.resume: remove all failed: Input/output error. Check the file system, then run again.");
}

TEST(Capture, AFullDiskIsAMatterOfResources) {
  for (int const full : {ENOSPC, EDQUOT})
    EXPECT_EQ(refused("cannot create directory", full)->kind(), ErrorKind::resources);
}

TEST(Capture, AnErrorWithOtherWordsKeepsItsPathAndReason) {
  EXPECT_EQ(
      refused("something else", ESTALE)->sentence(),
      "/data/.out.resume: access failed: Stale file handle. Check the file system, then run again.");
}

TEST(Capture, AWalkThatNamesNoFolderIsStillASentence) {
  auto const error = capture([] {
    throw fs::filesystem_error("directory iterator cannot advance",
                               std::error_code(EIO, std::generic_category()));
  });
  EXPECT_EQ(error->sentence(),
            "a folder: advance failed: Input/output error. Check the file system, then run again.");
}

TEST(Capture, TheLibrarysOwnWordsAreUnderstood) {
  auto const error = capture([] { fs::create_directory("/proc/no such folder/inside"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_TRUE(
      error->sentence().starts_with("/proc/no such folder/inside: create directory failed: "))
      << error->sentence();
}

}  // namespace
}  // namespace reshard
