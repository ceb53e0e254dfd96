#include "core/base/threads/stall_clock.hpp"

#include <gtest/gtest.h>

namespace reshard {
namespace {

using std::chrono::seconds;
constexpr StallClock::Clock::time_point start{};

TEST(StallClock, IsOverOnceNothingHasMovedForTheTimeout) {
  StallClock clock(600, start);
  for (int second = 1; second <= 600; ++second)
    EXPECT_FALSE(clock.is_over(start + seconds(second))) << second;
  EXPECT_TRUE(clock.is_over(start + seconds(601)));
  EXPECT_EQ(clock.look(start + seconds(602)), 602);
}

TEST(StallClock, BeginsAnewWhenSomethingMoves) {
  StallClock clock(10, start);
  for (int second = 1; second <= 60; ++second) {
    if (second % 9 == 0) clock.begin(start + seconds(second));
    EXPECT_FALSE(clock.is_over(start + seconds(second))) << second;
  }
}

TEST(StallClock, DoesNotCountTheTimeInWhichTheProcessStoodStill) {
  StallClock clock(600, start);
  for (int second = 1; second <= 500; ++second)
    EXPECT_FALSE(clock.is_over(start + seconds(second)));
  auto const continued = start + std::chrono::hours(24);
  EXPECT_EQ(clock.look(continued), 505);
  for (int second = 1; second <= 95; ++second)
    EXPECT_FALSE(clock.is_over(continued + seconds(second))) << second;
  EXPECT_TRUE(clock.is_over(continued + seconds(96)));
}

TEST(StallClock, IsNotOverByOneLookHoweverShortTheTimeout) {
  StallClock clock(1, start);
  EXPECT_EQ(clock.look(start + seconds(100)), 0.25);
  EXPECT_FALSE(clock.is_over(start + seconds(200)));
}

}  // namespace
}  // namespace reshard
