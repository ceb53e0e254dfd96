#include "core/io/io_trial.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/io/io_engines.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

std::vector<EngineRate> rates(double posix, double direct, double uring) {
  return {{"posix", posix}, {"direct", direct}, {"uring", uring}};
}

TEST(IoTrial, ChoosesTheDefaultUnlessAnotherIsClearlyFaster) {
  EXPECT_EQ(fastest_engine(rates(1.0, 1.1, 1.14)), "posix");
  EXPECT_EQ(fastest_engine(rates(1.0, 2.0, 1.9)), "direct");
  EXPECT_EQ(fastest_engine(rates(1.0, 1.9, 2.0)), "uring");
  EXPECT_EQ(fastest_engine(rates(0, 0, 2.0)), "uring");
  EXPECT_EQ(fastest_engine(rates(0, 0, 0)), "posix");
}

TEST(IoTrial, TakesLittleOfTheJob) {
  EXPECT_EQ(trial_bytes_for(0), 32U << 20);
  EXPECT_EQ(trial_bytes_for(std::uint64_t{8} << 30), 64U << 20);
  EXPECT_EQ(trial_bytes_for(std::uint64_t{1} << 40), 128U << 20);
}

TEST(IoTrial, MeasuresEachEngineAndLeavesNothingBehind) {
  ScratchFolder const folder("io_trial");
  for (std::size_t const threads : {1U, 3U}) {
    IoTrial const trial = try_writing(folder.path(), threads, 16U << 20);
    ASSERT_EQ(trial.rates.size(), io_engines().size());
    EXPECT_GT(trial.rates.front().bytes_per_second, 0);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
  std::vector<std::filesystem::path> const files = {folder.empty_file("a", 40U << 20),
                                                    folder.empty_file("b", 9U << 20)};
  IoTrial const trial = try_reading(files, 2, 16U << 20);
  ASSERT_EQ(trial.rates.size(), io_engines().size());
  EXPECT_GT(trial.rates.front().bytes_per_second, 0);
}

TEST(IoTrial, ReadsNothingWhereThereIsTooLittle) {
  ScratchFolder const folder("io_trial");
  std::vector<std::filesystem::path> const files = {folder.empty_file("a", 20U << 20),
                                                    folder.path() / "absent"};
  IoTrial const trial = try_reading(files, 2, 16U << 20);
  EXPECT_EQ(trial.chosen, "posix");
  EXPECT_TRUE(trial.rates.empty());
}

TEST(IoTrial, AFolderThatCannotBeWrittenIsNoError) {
  IoTrial const trial = try_writing("/proc/self", 2, 16U << 20);
  EXPECT_EQ(trial.chosen, "posix");
  EXPECT_EQ(trial.rates.front().bytes_per_second, 0);
}

}  // namespace
}  // namespace reshard
