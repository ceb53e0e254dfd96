#include "pipeline/run/progress.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>

#include <gtest/gtest.h>

#include "pipeline/messages/log.hpp"
#include "pipeline/messages/phase_line.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t gib = 1U << 30U;

StageState half_done() {
  StageState state;
  state.stage = "copy";
  state.done_bytes = 4 * gib;
  state.total_bytes = 8 * gib;
  state.seconds = 2;
  return state;
}

TEST(ProgressText, SaysHowFarHowFastAndHowLong) {
  EXPECT_EQ(progress_text(half_done(), 80),
            "copy    [##########..........]  50 %  4.0 of 8.0 GiB  2.00 GiB/s  0:00:02 left");
}

TEST(ProgressText, IsNotCut) {
  StageState state = half_done();
  state.slowest_rank = 5;
  state.slowest_share = 0.319;
  EXPECT_EQ(progress_text(state, 79),
            "copy     50 %  4.0 of 8.0 GiB  2.00 GiB/s  0:00:02 left  slowest rank 5 (31 %)");
  EXPECT_EQ(progress_text(state, 77),
            "copy    [#####.....]  50 %  4.0 of 8.0 GiB  2.00 GiB/s  0:00:02 left");
  EXPECT_EQ(progress_text(state, 42), "copy     50 %  4.0 of 8.0 GiB  2.00 GiB/s");
  EXPECT_TRUE(progress_text(state, 120).starts_with("copy    [##########..........]"));
  EXPECT_TRUE(progress_text(state, 120).ends_with("left  slowest rank 5 (31 %)"));
}

TEST(ProgressText, HasOneUnit) {
  StageState state = half_done();
  state.done_bytes = 32U << 20U;
  EXPECT_EQ(progress_text(state, 60), "copy      0 %  0.0 of 8.0 GiB  0.016 GiB/s  0:08:30 left");
  state.total_bytes = 64U << 20U;
  EXPECT_EQ(progress_text(state, 60), "copy     50 %  32.0 of 64.0 MiB  16.0 MiB/s  0:00:02 left");
}

TEST(ProgressText, StaysSaneAtTheEdges) {
  StageState state = half_done();
  state.done_bytes = 9 * gib;  // more than planned
  EXPECT_NE(progress_text(state, 80).find("100 %"), std::string::npos);
  EXPECT_EQ(progress_text(state, 80).find("left"), std::string::npos);
  state.done_bytes = 0;
  state.seconds = 0;
  EXPECT_EQ(progress_text(state, 50), "copy      0 %  0.0 of 8.0 GiB  0 GiB/s");
  state.total_bytes = 0;
  EXPECT_NE(progress_text(state, 80).find("100 %"), std::string::npos);
}

TEST(ClockText, HoursMinutesSecondsRoundedUp) {
  EXPECT_EQ(clock_text(0), "0:00:00");
  EXPECT_EQ(clock_text(59.2), "0:01:00");
  EXPECT_EQ(clock_text(3600 * 123 + 61), "123:01:01");
}

TEST(StageEndText, SaysWhatWasMoved) {
  EXPECT_EQ(stage_end_text(half_done()), "copy    4.0 GiB in 2.0 s, 2.00 GiB/s");
}

TEST(PhaseText, SaysHowLongAndHowFar) {
  Activity activity;
  activity.phase = "planning";
  activity.phase_seconds = 12.9;
  EXPECT_EQ(phase_text(activity), "planning  0:00:12");
  activity.done_bytes = 399;
  activity.total_bytes = 1000;
  EXPECT_EQ(phase_text(activity), "planning  39 %  0:00:12");
}

TEST(PhaseLine, NamesAPhaseThatLasts) {
  testing::internal::CaptureStderr();
  {
    PhaseLine const line(PhaseLine::Style::lines);
    begin_phase("planning");
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    begin_phase("publishing");  // does not last
  }
  std::string const said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(said.ends_with(" reshard: planning\n")) << said;
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
}

TEST(PhaseLine, IsSilentWhileItIsHeld) {
  testing::internal::CaptureStderr();
  {
    PhaseLine const line(PhaseLine::Style::lines);
    begin_phase("planning");
    PhaseLine::hold(true);  // as after an error, while MPI ends
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

/// What `work` says on stderr in this format.
std::string said_in(LogFormat format, std::function<void()> const& work) {
  testing::internal::CaptureStderr();
  set_log_format(format);
  work();
  set_log_format(LogFormat::plain);
  return testing::internal::GetCapturedStderr();
}

TEST(Log, HasTheTimeWhereItIsAFile) {
  auto const both = [] {
    warn({"a\nb"});
    log(LogLevel::error, "x\ny");
  };
  EXPECT_EQ(said_in(LogFormat::plain, both), "warning: a\\u000ab\nerror: x\nerror: y\n");
  std::string const text = said_in(LogFormat::automatic, both);  // CaptureStderr is a file
  EXPECT_EQ(text.substr(19, 24), " reshard: warning: a\\u00") << text;
  EXPECT_NE(text.find(" reshard: error: y\n"), std::string::npos) << text;
  std::string const json = said_in(LogFormat::json, [] { log(LogLevel::error, "x\ny"); });
  EXPECT_TRUE(json.starts_with(R"({"time": ")")) << json;
  EXPECT_TRUE(json.ends_with("\"level\": \"error\", \"message\": \"x\\ny\"}\n")) << json;
}

TEST(Log, HasTheTimeWhereMpirunWritesAFile) {
  std::string report;
  std::string const said = said_in(LogFormat::automatic, [&] {  // this process stands for mpirun
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe(ends.data()), 0);
    std::array<char, 16> usual{};
    ::prctl(PR_GET_NAME, usual.data());
    ::prctl(PR_SET_NAME, "mpirun");
    pid_t const rank = ::fork();
    if (rank == 0) {
      ::dup2(ends[1], STDERR_FILENO);
      log(LogLevel::error, "x");
      ::_exit(0);
    }
    ::close(ends[1]);
    for (char c = 0; ::read(ends[0], &c, 1) == 1;) report += c;
    ::close(ends[0]);
    ::waitpid(rank, nullptr, 0);
    ::prctl(PR_SET_NAME, usual.data());
  });
  EXPECT_TRUE(report.ends_with(" reshard: error: x\n")) << report;
  EXPECT_EQ(said, "");
}

TEST(Log, HasReportsToo) {
  EXPECT_EQ(logged_report("source  a\n"), "source  a\n");
  Json const document = Json().set("type", "result");
  set_log_format(LogFormat::text);
  std::string const text = logged_report("source  a\ntarget  b\n", &document);
  set_log_format(LogFormat::json);
  std::string const json = logged_report("source  a\n", &document);
  set_log_format(LogFormat::plain);
  EXPECT_TRUE(text.ends_with(" reshard: target  b\n")) << text;
  EXPECT_TRUE(json.ends_with(R"("level": "info", "report": {"type": "result"}})"
                             "\n"))
      << json;
}

}  // namespace
}  // namespace reshard
