#include "pipeline/records/reading_record.hpp"

#include <filesystem>

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

ReadingRecord made() {
  ReadingRecord record;
  record.listed = "abc";
  record.files["a \"b\""] = {utc_text(0), true};
  record.files["folder/c"] = {utc_text(1'795'662'726), false};
  record.parts["3/30"] = {utc_text(1'795'662'726), 2, 1ULL << 40U, false};
  return record;
}

TEST(ReadingRecord, IsReadAsItWasWritten) {
  ScratchFolder const scratch("readings");
  fs::path const file = scratch.path() / ".x.verified";
  EXPECT_TRUE(load_readings(file, "abc").files.empty());
  save_readings(file, made());
  save_readings(file, made());  // replaces
  ReadingRecord const found = load_readings(file, "abc");
  ASSERT_EQ(found.files.size(), 2U);
  EXPECT_EQ(found.files.at("a \"b\"").read, "1970-01-01T00:00:00Z");
  EXPECT_TRUE(found.files.at("a \"b\"").good);
  EXPECT_EQ(found.files.at("folder/c").read, "2026-11-26T03:12:06Z");
  EXPECT_FALSE(found.files.at("folder/c").good);
  ASSERT_EQ(found.parts.size(), 1U);
  EXPECT_EQ(found.parts.at("3/30").files, 2U);
  EXPECT_EQ(found.parts.at("3/30").bytes, 1ULL << 40U);
  EXPECT_FALSE(found.parts.at("3/30").good);
  // Nothing else is left there.
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()), 1);
}

TEST(ReadingRecord, OtherContentBeginsAnew) {
  ScratchFolder const scratch("readings");
  fs::path const file = scratch.path() / ".x.verified";
  save_readings(file, made());
  ReadingRecord const found = load_readings(file, "other");
  EXPECT_EQ(found.listed, "other");
  EXPECT_TRUE(found.files.empty());
  EXPECT_TRUE(found.parts.empty());
}

TEST(ReadingRecord, WhatIsNoRecordStaysAndIsRefused) {
  ScratchFolder const scratch("readings");
  fs::path const checkpoint = scratch.path() / "x";
  fs::path const file = reading_record_of(checkpoint);
  EXPECT_EQ(file, scratch.path() / ".x.verified");
  EXPECT_EQ(target_of_readings(".x.verified"), "x");
  EXPECT_FALSE(target_of_readings("x.verified"));
  EXPECT_FALSE(target_of_readings(".verified"));
  for (char const* text :
       {"my notes", "{}", R"({"reshard_verified": 2, "listed": "abc", "files": {}, "parts": {}})",
        R"({"reshard_verified": 1, "listed": "abc", "files": {"a": {}}, "parts": {}})",
        R"({"reshard_verified": 1, "listed": "abc", "files": [], "parts": {}})"}) {
    write_text_file(file, text);
    auto const error = capture([&] { (void)load_readings(file, "abc"); });
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->kind(), ErrorKind::usage);
  }
  write_text_file(file, "my notes");
  forget_readings(checkpoint);
  EXPECT_TRUE(fs::exists(file));
  save_readings(file, made());
  forget_readings(checkpoint);
  EXPECT_FALSE(fs::exists(file));
  forget_readings(checkpoint);
}

TEST(ReadingRecord, WhatItSaysWrongIsNamed) {
  ScratchFolder const scratch("readings");
  fs::path const file = scratch.path() / ".x.verified";
  auto const expect = [&](std::string const& members, std::string_view words) {
    write_text_file(file, R"({"reshard_verified": 1, "listed": "abc", )" + members + "}");
    test::expect_refused(ErrorKind::usage, words, [&] { (void)load_readings(file, "abc"); });
  };
  std::string const read = R"("read": "1970-01-01T00:00:00Z")";
  expect(R"("files": {"a": {)" + read + R"(, "good": 1}}, "parts": {})",
         "'good' is not true or false");
  expect(
      R"("files": {}, "parts": {"3/30": {)" + read + R"(, "files": -2, "bytes": 1, "good": true}})",
      "'files' is not a count");
}

}  // namespace
}  // namespace reshard
