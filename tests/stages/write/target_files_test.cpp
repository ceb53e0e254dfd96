#include "stages/write/target_files.hpp"

#include <fstream>

#include <gtest/gtest.h>

#include "core/base/hash/crc32.hpp"
#include "core/base/hash/crc64.hpp"
#include "core/containers/dcp/item.hpp"
#include "core/containers/dcp/items_frame.hpp"
#include "core/containers/safetensors/header_frame.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + 7);
  return bytes;
}

TEST(TouchedSums, AreGivenOnceAndSorted) {
  TouchedSums sums;
  for (std::size_t const number : {5U, 5U, 2U, 5U, 9U, 2U}) sums.note(number);
  EXPECT_EQ(sums.take(), (std::vector<std::size_t>{2, 5, 9}));
  EXPECT_TRUE(sums.take().empty());
  sums.note(5);
  EXPECT_EQ(sums.take(), (std::vector<std::size_t>{5}));
}

TEST(TouchedSums, KeepFewNumbersHoweverOftenTheyChange) {
  TouchedSums sums;
  for (std::size_t i = 0; i < 10000; ++i) sums.note(i % 3);
  EXPECT_EQ(sums.take(), (std::vector<std::size_t>{0, 1, 2}));
}

/// Two items of a .distcp file, behind each other.
std::vector<dcp::PlannedItem> two_items() {
  dcp::PlannedItem first;
  first.dtype = DType::bf16;
  first.shape = {3, 5};
  dcp::PlannedItem second = first;
  second.shape = {7};
  second.offset_bytes = dcp::item_layout(first.dtype, first.shape).size_bytes;
  return {first, second};
}

/// A plain file, and one with the two items.
std::vector<TargetLayout> layouts(std::filesystem::path const& folder) {
  auto const items = two_items();
  TargetLayout plain;
  plain.path = folder / "a" / "plain.safetensors";
  plain.size_bytes = 100;
  plain.frame = std::make_shared<safetensors::HeaderFrame>("header");
  TargetLayout with_items;
  with_items.path = folder / "b.distcp";
  with_items.frame = std::make_shared<dcp::ItemsFrame>(dcp::FileItems{items, {}});
  with_items.size_bytes =
      items[1].offset_bytes + dcp::item_layout(items[1].dtype, items[1].shape).size_bytes;
  return {plain, with_items};
}

TEST(RecordChecksums, AreThoseOfEachRecordWhateverThePieces) {
  auto const files = layouts("/nowhere");
  auto const items = two_items();
  auto const bytes = pattern(files[1].size_bytes);
  for (std::size_t const step : {1U, 7U, 64U, 5000U}) {
    RecordChecksums sums(files);
    EXPECT_EQ(sums.shares().size(), 2U);
    sums.add(0, 0, pattern(100));
    EXPECT_TRUE(sums.take_touched().empty());
    for (std::size_t at = 0; at < bytes.size(); at += step)
      sums.add(1, at, std::span(bytes).subspan(at, std::min(step, bytes.size() - at)));
    EXPECT_EQ(sums.take_touched(), (std::vector<std::size_t>{0, 1}));
    auto const found = sums.of_file(1);
    ASSERT_EQ(found.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      auto const layout = dcp::item_layout(items[i].dtype, items[i].shape);
      EXPECT_EQ(found[i],
                crc32(std::span(bytes).subspan(items[i].offset_bytes + layout.payload_offset_bytes,
                                               layout.payload_bytes)))
          << i << " in steps of " << step;
    }
    EXPECT_TRUE(sums.of_file(0).empty());
  }
}

TEST(RecordChecksums, OfRecordsThatAreKnownNoByteCounts) {
  auto const files = layouts("/nowhere");
  auto const items = two_items();
  auto const bytes = pattern(files[1].size_bytes);
  RecordChecksums sums(files, {std::nullopt, 77U});
  sums.add(1, 0, bytes);
  EXPECT_EQ(sums.take_touched(), (std::vector<std::size_t>{0}));
  EXPECT_EQ(sums.shares()[1], 0U);
  auto const found = sums.of_file(1);
  auto const layout = dcp::item_layout(items[0].dtype, items[0].shape);
  EXPECT_EQ(found[0],
            crc32(std::span(bytes).subspan(items[0].offset_bytes + layout.payload_offset_bytes,
                                           layout.payload_bytes)));
  EXPECT_EQ(found[1], 77U);
}

TEST(FileDigests, AreThoseOfTheWholeFile) {
  auto const files = layouts("/nowhere");
  FileDigests sums(files);
  auto const bytes = pattern(100);
  sums.add(0, 60, std::span(bytes).subspan(60));
  EXPECT_EQ(sums.take_touched(), (std::vector<std::size_t>{0}));
  sums.add(0, 0, std::span(bytes).first(60));
  EXPECT_EQ(sums.shares()[0], crc64(bytes));
  EXPECT_EQ(sums.shares()[1], 0U);
}

TEST(FileDigests, OfBlocksGiveThoseOfFiles) {
  auto const files = layouts("/nowhere");
  FileDigests sums(files, 32);
  FileDigests whole(files);
  auto const bytes = pattern(100);
  for (FileDigests* const one : {&sums, &whole}) {
    one->add(0, 70, std::span(bytes).subspan(70));
    one->add(0, 0, std::span(bytes).first(70));
  }
  ASSERT_EQ(sums.blocks_of(0).size(), 4U);
  EXPECT_EQ(sums.blocks_of(0)[1], crc64(std::span(bytes).subspan(32, 32)));
  EXPECT_EQ(sums.blocks_of(0)[3], crc64(std::span(bytes).subspan(96)));
  EXPECT_EQ(sums.of_files(), whole.of_files());
  EXPECT_EQ(sums.of_files()[0], crc64(bytes));
  EXPECT_EQ(crc64_of_blocks(sums.blocks_of(0), 100, 32), crc64(bytes));
  EXPECT_EQ(sums.take_touched(), (std::vector<std::size_t>{0, 1, 2, 3}));
}

void finish(TargetLayout const& layout, std::span<FileSegment const> frame,
            std::span<FileSegment const> held = {}) {
  FileSet files({layout.path}, FileSet::Access::write);
  finish_target_file(files, 0, layout, frame, held);
  EXPECT_TRUE(files.unsynced().empty());
  files.close();
}

TEST(TargetFiles, AreMadeReopenedAndFinished) {
  ScratchFolder const scratch("target_files");
  auto files = layouts(scratch.path());
  make_folders(files[0].path.parent_path());
  create_target_file(files[0]).close();
  auto now = bytes_of(files[0].path);
  ASSERT_EQ(now.size(), 100U);
  EXPECT_EQ(std::memcmp(now.data(), "header", 6), 0);
  EXPECT_EQ(now[6], std::byte{0});
  files[0].frame = std::make_shared<safetensors::HeaderFrame>("HEADER");
  reopen_target_file(files[0]).close();
  now = bytes_of(files[0].path);
  EXPECT_EQ(now.size(), 100U);
  EXPECT_EQ(std::memcmp(now.data(), "HEADER", 6), 0);
  // A header stands already: its frame is not written again, what was kept back is.
  auto const frame = frame_of(files[0], {}, {});
  EXPECT_EQ(frame, (std::vector<FileSegment>{{0, "HEADER"}}));
  std::vector<FileSegment> const other{{0, "other!"}};
  std::vector<FileSegment> const held{{50, "kept"}};
  finish(files[0], other, held);
  now = bytes_of(files[0].path);
  EXPECT_EQ(std::memcmp(now.data(), "HEADER", 6), 0);
  EXPECT_EQ(std::memcmp(now.data() + 50, "kept", 4), 0);
}

/// Has a skeleton until it is finished, as HDF5 files have.
class SkeletonFrame : public FileFrame {
 public:
  std::span<FileSegment const> skeleton() const override { return skeleton_; }
  std::vector<FileSegment> rest(std::span<std::uint32_t const>,
                                std::span<std::uint64_t const> digests) const override {
    return {{2, std::to_string(digests[0])}};
  }

 private:
  std::vector<FileSegment> skeleton_ = {{0, "abcd"}, {8, "ef"}};
};

TEST(TargetFiles, ASkeletonGivesWayToTheRest) {
  ScratchFolder const scratch("target_files");
  TargetLayout const layout{scratch.path() / "a.h5", 12, std::make_shared<SkeletonFrame>()};
  create_target_file(layout).close();
  auto const text = [&] {
    auto const now = bytes_of(layout.path);
    return std::string(reinterpret_cast<char const*>(now.data()), now.size());
  };
  EXPECT_EQ(text(), std::string("abcd\0\0\0\0ef\0\0", 12));
  finish(layout, frame_of(layout, {}, std::vector<std::uint64_t>{57}));
  EXPECT_EQ(text(), std::string("\0\0"
                                "57\0\0\0\0\0\0\0\0",
                                12));
}

TEST(TargetFiles, FramesOfItemsLieAroundTheirPayloads) {
  ScratchFolder const scratch("target_files");
  auto const files = layouts(scratch.path());
  auto const items = two_items();
  std::vector<std::uint32_t> const sums{0x11223344, 0x55667788};
  auto const frame = frame_of(files[1], sums, {});
  auto const first = dcp::item_layout(items[0].dtype, items[0].shape);
  auto const second = dcp::item_layout(items[1].dtype, items[1].shape);
  // Head; tail of the first with the head of the second; tail.
  ASSERT_EQ(frame.size(), 3U);
  EXPECT_EQ(frame[0].offset_bytes, 0U);
  EXPECT_EQ(frame[0].bytes.size(), first.payload_offset_bytes);
  EXPECT_EQ(frame[1].offset_bytes, first.payload_offset_bytes + first.payload_bytes);
  EXPECT_EQ(frame[1].offset_bytes + frame[1].bytes.size(),
            items[1].offset_bytes + second.payload_offset_bytes);
  EXPECT_EQ(frame[2].offset_bytes + frame[2].bytes.size(), files[1].size_bytes);
  create_target_file(files[1]).close();
  finish(files[1], frame);
  auto const now = bytes_of(files[1].path);
  for (FileSegment const& segment : frame)
    EXPECT_EQ(
        std::memcmp(now.data() + segment.offset_bytes, segment.bytes.data(), segment.bytes.size()),
        0);
}

}  // namespace
}  // namespace reshard
