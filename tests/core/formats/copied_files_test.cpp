// Files of ranks that are copies of each other, by the checksums that their headers state.

#include "core/formats/targets/copied_files.hpp"

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/base/hash/crc32.hpp"
#include "tests/support/random_bytes.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t large = 8192;

/// Files with payloads of random numbers, by the checksums that their headers are said to state.
struct Files {
  using Records = std::initializer_list<std::pair<std::uint64_t, std::optional<std::uint32_t>>>;

  explicit Files(std::size_t period = 0) : period_(period) {}

  Files& add(Records records) {
    auto const file = static_cast<std::uint32_t>(checkpoint.files.size());
    std::uint64_t at = 64;
    for (auto const& [bytes, crc32] : records) {
      checkpoint.records.push_back({file, at, bytes, 0, 1 << 20, crc32});
      at += bytes;
    }
    std::vector<std::byte> payload = random_bytes(at, 1);
    for (std::size_t i = period_; period_ > 0 && i < payload.size(); ++i)
      payload[i] = payload[i - period_];
    checkpoint.files.push_back(folder_.file(std::to_string(file), payload));
    return *this;
  }

  std::string path(std::size_t file) const { return checkpoint.files[file].string(); }

  std::string refusal(std::vector<DifferentFiles> const& lists) const {
    auto const failed = capture([&] { refuse_copied_files(checkpoint, lists); });
    if (!failed) return "";
    EXPECT_EQ(failed->kind(), ErrorKind::source);
    return failed->sentence();
  }

  Checkpoint checkpoint;

 private:
  std::size_t period_;
  ScratchFolder folder_{"copied_files"};
};

TEST(CopiedFiles, TwoOfOneListAreNamed) {
  Files files;
  files.add({{64, 1}, {large, 2}}).add({{64, 1}, {large, 3}}).add({{64, 1}, {large, 2}});
  EXPECT_EQ(files.refusal({{0, 1, 2}}),
            files.path(2) + ": holds the same bytes as " + files.path(0) +
                " (2 records with equal CRC-32s), and the two must hold different parts of the "
                "same tensors. One is a copy of the other: restore it from the original. Where the "
                "model repeats itself there, set source.verify = \"off\".");
  EXPECT_EQ(files.refusal({{0, 1}, {2}}), "") << "files of different lists may be equal";
  EXPECT_EQ(files.refusal({}), "");
}

TEST(CopiedFiles, PayloadsThatRepeatThemselvesProveNothing) {
  for (std::size_t const period : {1UL, 2UL, 4UL, 512UL})
    EXPECT_EQ(Files(period).add({{large, 7}}).add({{large, 7}}).refusal({{0, 1}}), "") << period;
  EXPECT_NE(Files(large / 2).add({{large, 7}}).add({{large, 7}}).refusal({{0, 1}}), "");
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
