#include "pipeline/run/progress.hpp"

#include <gtest/gtest.h>

namespace reshard {
namespace {

constexpr std::uint64_t gib = 1U << 30U;

StageState half_done() {
  StageState state;
  state.stage = "stream";
  state.done_bytes = 4 * gib;
  state.total_bytes = 8 * gib;
  state.seconds = 2;
  return state;
}

TEST(ProgressText, SaysHowFarHowFastAndHowLong) {
  EXPECT_EQ(progress_text(half_done(), false),
            "stream   50 %  4.0 GiB of 8.0 GiB  2.00 GiB/s  0:00:02 left");
  EXPECT_EQ(progress_text(half_done(), true),
            "stream  [##########..........]  50 %  4.0 GiB of 8.0 GiB  2.00 GiB/s  0:00:02 left");
}

TEST(ProgressText, NamesTheSlowestRank) {
  StageState state = half_done();
  state.slowest_rank = 5;
  state.slowest_share = 0.319;
  EXPECT_TRUE(progress_text(state, false).ends_with("slowest rank 5 (31 %)"))
      << progress_text(state, false);
}

TEST(ProgressText, StaysSaneAtTheEdges) {
  StageState state = half_done();
  state.done_bytes = 9 * gib;  // more than planned
  EXPECT_NE(progress_text(state, true).find("100 %"), std::string::npos);
  EXPECT_EQ(progress_text(state, true).find("left"), std::string::npos);
  state.done_bytes = 0;
  state.seconds = 0;
  EXPECT_EQ(progress_text(state, false), "stream    0 %  0 B of 8.0 GiB  0.00 GiB/s");
  state.total_bytes = 0;
  EXPECT_NE(progress_text(state, false).find("100 %"), std::string::npos);
}

TEST(ClockText, HoursMinutesSecondsRoundedUp) {
  EXPECT_EQ(clock_text(0), "0:00:00");
  EXPECT_EQ(clock_text(59.2), "0:01:00");
  EXPECT_EQ(clock_text(3600 * 123 + 61), "123:01:01");
}

TEST(StageEndText, SaysWhatWasMoved) {
  EXPECT_EQ(stage_end_text(half_done()), "stream  4.0 GiB in 2.0 s, 2.00 GiB/s");
}

}  // namespace
}  // namespace reshard
