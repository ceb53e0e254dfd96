#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "core/transport/comm.hpp"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

TEST(TogetherStepByStep, EndsWhenEveryRankIsDone) {
  Comm const comm = Comm::world();
  for (int round = 0; round < 20; ++round) {
    int steps = 0;
    int const needed = 1 + (comm.rank() * 7 + round * 3) % 11;
    together_step_by_step(comm, 60, [&] { return ++steps == needed; });
    EXPECT_EQ(steps, needed) << "a rank that is done takes no further step";
  }
}

TEST(TogetherStepByStep, AFailureEndsRanksThatWouldWaitForEver) {
  Comm const comm = Comm::world();
  int const odd_one = comm.size() / 2;
  auto const begin = Clock::now();
  std::optional<Error> const error = capture([&] {
    together_step_by_step(comm, 60, [&, steps = 0]() mutable {
      if (comm.rank() == odd_one && ++steps == 5)
        fail(ErrorKind::target, "rank {} cannot", odd_one);
      return false;
    });
  });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::target);
  EXPECT_EQ(error->sentence(), fmt::format("rank {} cannot", odd_one));
}

TEST(TogetherStepByStep, TheLowestOfSeveralFailuresIsThrown) {
  Comm const comm = Comm::world();
  std::optional<Error> const error = capture([&] {
    together_step_by_step(comm, 60, [&]() -> bool {
      throw Error(ErrorKind::source, fmt::format("rank {}", comm.rank()));
    });
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->sentence(), "rank 0");
}

TEST(TogetherStepByStep, RanksThatAreDoneHearOfALaterFailure) {
  Comm const comm = Comm::world();
  std::optional<Error> const error = capture([&] {
    together_step_by_step(comm, 60, [&]() -> bool {
      if (comm.rank() != comm.size() - 1) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      throw std::runtime_error("late");
    });
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::internal);
  EXPECT_NE(error->sentence().find("late"), std::string::npos);
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
