// What files and texts are refused for, in which words.
#include <fstream>

#include <sys/resource.h>

#include "core/base/files/file.hpp"
#include "core/base/files/file_range.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/text/json.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/failing_call.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

using test::expect_refused;

class FileRefusals : public testing::Test {
 protected:
  FileRefusals() { std::ofstream(path_) << "12345678"; }

  ScratchFolder folder_{"file_refusals"};
  std::filesystem::path path_ = folder_.path() / "file";
  std::byte byte_{};
};

TEST_F(FileRefusals, WhatIsNoRegularFile) {
  expect_refused(ErrorKind::source, "is not a regular file. Name a file.",
                 [&] { File::open_for_reading(folder_.path()); });
  expect_refused(ErrorKind::usage,
                 "none: cannot be opened: No such file or directory. Check the path",
                 [&] { File::open_for_reading(folder_.path() / "none", ErrorKind::usage); });
}

TEST_F(FileRefusals, NoDescriptorIsLeft) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit const none = {0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  auto const error = [&] {
    try {
      File::open_for_reading(path_);
    } catch (Error const& refused) {
      return std::optional<Error>(refused);
    }
    return std::optional<Error>();
  }();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::resources);
  EXPECT_NE(
      error->sentence().find("open failed: Too many open files. Free space or raise the limit"),
      std::string::npos)
      << error->sentence();
}

TEST_F(FileRefusals, PlacesThatAreNotThere) {
  expect_refused(ErrorKind::io, "create failed: No such file or directory",
                 [&] { File::create(folder_.path() / "none" / "file"); });
  expect_refused(ErrorKind::io, "open for writing failed: No such file or directory",
                 [&] { File::open_for_writing(folder_.path() / "none"); });
  expect_refused(ErrorKind::io, "create failed: Not a directory",
                 [&] { make_folders(path_ / "below"); });
  expect_refused(ErrorKind::io, "rename to other failed: No such file or directory",
                 [&] { rename_path(folder_.path() / "none", folder_.path() / "other"); });
  expect_refused(ErrorKind::io, "open directory failed: Not a directory",
                 [&] { sync_directory(path_); });
}

TEST_F(FileRefusals, WhatTheSystemDoesNotDoWithAFile) {
  std::span<std::byte> const bytes(&byte_, 1);
  iovec const part = {&byte_, 1};
  File const read = File::open_for_reading(path_);
  expect_refused(ErrorKind::io, "write of 1 bytes at offset 3 failed: Bad file descriptor",
                 [&] { read.write_at(3, bytes); });
  expect_refused(ErrorKind::io, "write at offset 3 failed: Bad file descriptor", [&] {
    static_cast<void>(read.write_parts_at(3, {&part, 1}, File::Cache::keep));
  });
  expect_refused(ErrorKind::io, "resize to 4 bytes failed", [&] { read.resize(4); });
  File written = File::open_for_writing(path_);
  expect_refused(ErrorKind::io, "read of 1 bytes at offset 2 failed: Bad file descriptor",
                 [&] { written.read_at(2, bytes); });
  expect_refused(ErrorKind::io, "read at offset 2 failed: Bad file descriptor", [&] {
    written.read_parts_at(2, {&part, 1});
  });
  written.close();
  expect_refused(ErrorKind::io, "stat failed: Bad file descriptor",
                 [&] { static_cast<void>(written.size_bytes()); });
}

TEST_F(FileRefusals, WhatIsBehindTheEnd) {
  std::array<std::byte, 4> bytes{};
  iovec const part = {bytes.data(), bytes.size()};
  File const file = File::open_for_reading(path_);
  expect_refused(ErrorKind::source,
                 "4 bytes needed at offset 6, the file ends after 2. It is truncated",
                 [&] { file.read_at(6, bytes); });
  expect_refused(ErrorKind::source, "more bytes needed at offset 8, where the file ends.", [&] {
    file.read_parts_at(6, {&part, 1});
  });
  expect_refused(ErrorKind::source, "4 bytes needed at offset 5, the file has 8.",
                 [&] { FileRange(file, 5, 4); });
  expect_refused(ErrorKind::source, "4 bytes needed at offset 1, which ends after 2.",
                 [&] { FileRange(file, 5, 3).read_at(1, bytes); });
  expect_refused(ErrorKind::source, "8 bytes, at most 7 are read from such a file.",
                 [&] { read_text_file(path_, 7); });
}

TEST(JsonRefusals, SayWhatIsWrong) {
  auto const parse = [](std::string const& text) { return [text] { parse_json(text, "a.json"); }; };
  expect_refused(ErrorKind::source, "a.json: is not valid JSON: ", parse("{"));
  expect_refused(ErrorKind::source, "a.json: JSON nested deeper than ",
                 parse(std::string(500, '[') + std::string(500, ']')));
  expect_refused(ErrorKind::source, "a.json: the key \"k\" appears twice in one JSON object.",
                 parse(R"({"k": 1, "k": 2})"));
  expect_refused(ErrorKind::source, "has a malformed number, or one that does not fit in 64 bits.",
                 parse("[1e999]"));
  expect_refused(ErrorKind::source, "of JSON: a valid document has fewer.",
                 parse("[" + std::string(2'000'000, ',') + "]"));
}

TEST(IntegerRefusals, NameTheQuantity) {
  Index const most = INT64_MAX;
  expect_refused(ErrorKind::usage, "the sum: 9223372036854775807 + 1 does not fit in 64 bits",
                 [&] { checked_add(most, Index{1}, ErrorKind::usage, "the sum"); });
  expect_refused(ErrorKind::source, "the product: 9223372036854775807 x 2 does not fit in 64 bits",
                 [&] { checked_mul(most, Index{2}, ErrorKind::source, "the product"); });
  std::vector<Index> const shape = {2, -1};
  expect_refused(ErrorKind::source, "a shape: a dimension is -1, below zero",
                 [&] { checked_volume(shape, ErrorKind::source, "a shape"); });
}

TEST_F(FileRefusals, WhatTheSystemDoesNotWriteBack) {
  File const file = File::open_for_writing(path_);
  auto const write_back = [&] { (void)file.begin_write_back(0, 4096); };
  EXPECT_NE(test::refused_without(SYS_sync_file_range, EIO, write_back)
                .find("write-back of 4096 bytes at offset 0 failed: "),
            std::string::npos);
  EXPECT_NE(test::refused_without(SYS_fsync, EIO, [&] { sync_directory(folder_.path()); })
                .find("fsync of directory failed: "),
            std::string::npos);
}

}  // namespace
}  // namespace reshard
