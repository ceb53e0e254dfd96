// Files of ranks that are copies of each other, by the checksums that their headers state.

#include "core/formats/copied_files.hpp"

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/base/crc32.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t large = 8192;

struct Files {
  Files& add(
      std::initializer_list<std::pair<std::uint64_t, std::optional<std::uint32_t>>> records) {
    auto const file = static_cast<std::uint32_t>(checkpoint.files.size());
    checkpoint.files.push_back("/ckpt/" + std::to_string(file));
    std::uint64_t at = 64;
    for (auto const& [bytes, crc32] : records) {
      checkpoint.records.push_back({file, at, bytes, 0, 1 << 20, crc32});
      at += bytes;
    }
    return *this;
  }

  std::string refusal(std::vector<DifferentFiles> const& lists) const {
    auto const failed = capture([&] { refuse_copied_files(checkpoint, lists); });
    if (!failed) return "";
    EXPECT_EQ(failed->kind(), ErrorKind::source);
    return failed->sentence();
  }

  Checkpoint checkpoint;
};

TEST(CopiedFiles, TwoOfOneListAreNamed) {
  Files files;
  files.add({{64, 1}, {large, 2}}).add({{64, 1}, {large, 3}}).add({{64, 1}, {large, 2}});
  EXPECT_EQ(files.refusal({{0, 1, 2}}),
            "/ckpt/2: holds the same bytes as /ckpt/0 (2 records with equal CRC-32s), and the two "
            "must hold different parts of the same tensors. One is a copy of the other: restore it "
            "from the original.");
  EXPECT_EQ(files.refusal({{0, 1}, {2}}), "") << "files of different lists may be equal";
  EXPECT_EQ(files.refusal({}), "");
}

TEST(CopiedFiles, OneRecordThatDiffersIsEnough) {
  Files files;
  files.add({{64, 1}, {large, 2}}).add({{64, 9}, {large, 2}});
  EXPECT_EQ(files.refusal({{0, 1}}), "");
}

TEST(CopiedFiles, ZerosSmallFilesAndUnknownSumsProveNothing) {
  std::uint32_t const zeros = crc32_of_zeros(large);
  EXPECT_EQ(Files().add({{large, zeros}}).add({{large, zeros}}).refusal({{0, 1}}), "");
  EXPECT_EQ(Files().add({{64, 7}}).add({{64, 7}}).refusal({{0, 1}}), "");
  EXPECT_EQ(Files().add({{large, 7}, {large, {}}}).add({{large, 7}, {large, {}}}).refusal({{0, 1}}),
            "");
  EXPECT_NE(
      Files().add({{large, 7}, {large, zeros}}).add({{large, 7}, {large, zeros}}).refusal({{0, 1}}),
      "");
}

}  // namespace
}  // namespace reshard
