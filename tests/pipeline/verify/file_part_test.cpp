#include "pipeline/verify/file_part.hpp"

#include <random>

#include <gtest/gtest.h>

#include "core/base/capture.hpp"

namespace reshard {
namespace {

TEST(FilePart, TextsAreRead) {
  EXPECT_EQ(parse_file_part("3/30", 77), (FilePart{3, 30}));
  EXPECT_EQ(parse_file_part("1/1", 77), (FilePart{1, 1}));
  EXPECT_EQ(parse_file_part("auto/7", 77), (FilePart{1, 7}));
  EXPECT_EQ(parse_file_part("auto/7", 83), (FilePart{7, 7}));
  EXPECT_EQ(parse_file_part("auto", 89), (FilePart{30, 30}));
  for (char const* wrong : {"", "3", "0/30", "31/30", "-1/30", "3/0", "3/", "/30", "3/30/2",
                            "auto/", "auto/0", "auto/x", "1/10001", "today"})
    EXPECT_TRUE(capture([&] { (void)parse_file_part(wrong, 0); })) << wrong;
}

TEST(FilePart, DaysInARowAreAllParts) {
  std::vector<int> times(30);
  for (std::int64_t day = 20'783; day < 20'783 + 30; ++day)
    ++times[static_cast<std::size_t>(part_of_day(30, day).number - 1)];
  EXPECT_EQ(times, std::vector<int>(30, 1));
}

/// Whatever the sizes, every file is in exactly one part, and no part is larger than its share and
/// the file that it ends with.
TEST(FilePart, EveryFileIsInOnePart) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> sizes(random() % 40);
    std::uint64_t all = 0;
    std::uint64_t largest = 0;
    for (std::uint64_t& size : sizes) {
      size = random() % 5 == 0 ? 0 : random() % (std::uint64_t{1} << (random() % 50 + 1));
      all += size;
      largest = std::max(largest, size);
    }
    auto const of = static_cast<std::int64_t>(random() % 35 + 1);
    std::vector<int> times(sizes.size());
    for (std::int64_t number = 1; number <= of; ++number) {
      std::vector<bool> const members = files_in({number, of}, sizes);
      ASSERT_EQ(members.size(), sizes.size());
      std::uint64_t bytes = 0;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        times[i] += members[i];
        bytes += members[i] ? sizes[i] : 0;
      }
      EXPECT_LE(bytes, all / static_cast<std::uint64_t>(of) + largest + 1);
    }
    EXPECT_EQ(times, std::vector<int>(sizes.size(), 1));
  }
}

TEST(FilePart, VeryLargeCheckpointsDoNotOverflow) {
  std::vector<std::uint64_t> const sizes(4, std::uint64_t{1} << 61);
  EXPECT_EQ(files_in({10'000, 10'000}, sizes), (std::vector<bool>(4, false)));
  EXPECT_EQ(files_in({4, 4}, sizes), (std::vector<bool>{false, false, false, true}));
}

}  // namespace
}  // namespace reshard
