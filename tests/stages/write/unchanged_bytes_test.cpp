#include "stages/write/unchanged_bytes.hpp"

#include <filesystem>
#include <random>

#include <gtest/gtest.h>

#include "core/base/files/file.hpp"
#include "core/base/hash/crc64.hpp"
#include "core/base/range.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t block = 256 * kib;

/// A previous target of one file of two and a half blocks.
class UnchangedBytesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937_64 random(1);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random());
    File file = File::create(path_);
    file.write_at(0, bytes_);
    file.close();
    std::vector<std::uint64_t> sums;
    for (std::uint64_t at = 0; at < bytes_.size(); at += block)
      sums.push_back(crc64(std::span(bytes_).subspan(at, std::min(block, bytes_.size() - at))));
    files_ = {{path_, File::open_for_reading(path_).stamp(), sums}, {}};
  }

  /// What is to be written when a round brings [begin, end) of this file in extents of `most`
  /// bytes, in reverse order in staging.
  std::vector<FileSpan> written(std::vector<std::byte> const& now, std::uint64_t begin,
                                std::uint64_t end, std::uint64_t most, std::uint32_t file = 0) {
    std::vector<Extent> extents;
    for (std::uint64_t at = begin; at < end; at += most)
      extents.push_back({file, at, std::min(most, end - at), end - std::min(at + most, end)});
    std::vector<std::byte> staging(end - begin);
    for (Extent const& one : extents)
      std::copy_n(now.begin() + static_cast<std::ptrdiff_t>(one.offset_bytes), one.bytes,
                  staging.begin() + static_cast<std::ptrdiff_t>(one.at));
    UnchangedBytes unchanged(files_, block, 2);
    std::vector<FileSpan> spans;
    ComparedRound const compared = unchanged.compare(extents, staging.data());
    blocks_ = compared.blocks;
    for (Extent const& one : compared.to_write)
      spans.push_back({one.file, one.offset_bytes, one.offset_bytes + one.bytes});
    kept_ = unchanged.take_kept();
    EXPECT_TRUE(unchanged.take_kept().empty());
    return united(std::move(spans));
  }

  ScratchFolder scratch_{"unchanged_bytes"};
  std::filesystem::path path_ = scratch_.path() / "previous";
  std::vector<std::byte> bytes_ = std::vector<std::byte>(2 * block + block / 2);
  std::vector<PreviousFile> files_;
  std::vector<FileSpan> kept_;
  std::vector<UnchangedBlock> blocks_;
};

TEST_F(UnchangedBytesTest, NothingOfTheSameFileIsWritten) {
  for (std::uint64_t const most : {10 * block, 100 * kib, 7 * kib})
    EXPECT_TRUE(written(bytes_, 0, bytes_.size(), most).empty()) << most;
  EXPECT_EQ(kept_, (std::vector<FileSpan>{{0, 0, bytes_.size()}}));
  ASSERT_EQ(blocks_.size(), 3U);
  EXPECT_EQ(blocks_[2].span, (FileSpan{0, 2 * block, bytes_.size()}));
  EXPECT_EQ(blocks_[2].crc64, crc64(std::span(bytes_).subspan(2 * block)));
}

TEST_F(UnchangedBytesTest, TheBlockOfAChangeIsWritten) {
  auto now = bytes_;
  now[block + 5] ^= std::byte{1};
  EXPECT_EQ(written(now, 0, now.size(), 100 * kib), (std::vector<FileSpan>{{0, block, 2 * block}}));
  EXPECT_EQ(kept_, (std::vector<FileSpan>{{0, 0, block}, {0, 2 * block, now.size()}}));
  now.back() ^= std::byte{1};
  EXPECT_EQ(written(now, 0, now.size(), 10 * block),
            (std::vector<FileSpan>{{0, block, now.size()}}));
}

TEST_F(UnchangedBytesTest, PartsOfBlocksAreWritten) {
  std::uint64_t const begin = block - 64 * kib;
  std::uint64_t const end = 2 * block + 64 * kib;
  EXPECT_EQ(written(bytes_, begin, end, 50 * kib),
            (std::vector<FileSpan>{{0, begin, block}, {0, 2 * block, end}}));
  ASSERT_EQ(blocks_.size(), 1U);
  EXPECT_EQ(blocks_[0].span, (FileSpan{0, block, 2 * block}));
}

TEST_F(UnchangedBytesTest, ABlockWithAGapIsWritten) {
  std::vector<Extent> const extents{{0, 0, 100, 0}, {0, 101, block - 101, 101}};
  UnchangedBytes unchanged(files_, block, 1);
  EXPECT_EQ(unchanged.compare(extents, bytes_.data()).to_write, extents);
}

TEST_F(UnchangedBytesTest, WhatIsRecordedDecidesOfCompleteBlocks) {
  files_[0].blocks[1] ^= 1;
  EXPECT_EQ(written(bytes_, 0, bytes_.size(), block),
            (std::vector<FileSpan>{{0, block, 2 * block}}));
}

TEST_F(UnchangedBytesTest, OfAnotherFileNothingIsKnown) {
  EXPECT_EQ(written(bytes_, 0, block, block, 1), (std::vector<FileSpan>{{1, 0, block}}));
  EXPECT_TRUE(kept_.empty());
}

TEST_F(UnchangedBytesTest, ALinkChangesNoStampThatCounts) {
  FileStamp const before = files_[0].stamp;
  std::filesystem::create_hard_link(path_, scratch_.path() / "other");
  EXPECT_TRUE(is_same_file(File::open_for_reading(path_).stamp(), before));
  EXPECT_TRUE(written(bytes_, 0, bytes_.size(), block).empty());
}

}  // namespace
}  // namespace reshard
