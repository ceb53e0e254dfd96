#include "pipeline/nightly/shell_command.hpp"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "core/base/files/file.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Until it has ended; from the moment on when `stop_file` exists, the job is told to stop.
ShellEnd end_of(ShellCommand const& command, fs::path const& stop_file = {}) {
  RunningCommand running(command);
  while (!running.has_ended(!stop_file.empty() && fs::exists(stop_file)))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return running.end();
}

TEST(ShellCommand, SaysHowItEnded) {
  EXPECT_TRUE(end_of({.text = "exit 0"}).succeeded());
  EXPECT_EQ(end_of({.text = "exit 3"}).exit_code, 3);
  EXPECT_FALSE(end_of({.text = "exit 3"}).succeeded());
  EXPECT_EQ(end_of({.text = "no-such-command-here 2>/dev/null"}).exit_code, 127);
  ShellEnd const killed = end_of({.text = "kill -9 $$"});
  EXPECT_EQ(killed.signal, 9);
  EXPECT_FALSE(killed.succeeded() || killed.stopped || killed.out_of_time);
}

TEST(ShellCommand, GetsItsArgumentItsEnvironmentAndNoInput) {
  ScratchFolder const scratch("shell_told");
  std::string const told = (scratch.path() / "told").string();
  std::string const odd = "a b\"$(c)'";
  ShellEnd const end =
      end_of({.text = "{ printf '%s\\n' \"$1\" \"$RESHARD_TARGET\" \"$#\"; cat; } > \"$TOLD\"",
              .argument = odd,
              .environment = {{"RESHARD_TARGET", "x=y"}, {"TOLD", told}}});
  EXPECT_TRUE(end.succeeded());
  EXPECT_EQ(read_text_file(told, 1000), odd + "\nx=y\n1\n");
}

TEST(ShellCommand, IsEndedAfterItsTime) {
  ShellEnd const end = end_of({.text = "sleep 60", .limit_seconds = 1});
  EXPECT_TRUE(end.out_of_time && !end.succeeded() && !end.stopped);
  EXPECT_LT(end.seconds, 20);
}

/// The shell ends at once, what it has started takes a moment.
TEST(ShellCommand, IsToldToStopWithAllThatItHasStarted) {
  ScratchFolder const scratch("shell_stop");
  ShellEnd const end = end_of(
      {.text = "cd \"$1\"; (trap 'sleep 0.3; echo > ended; exit' TERM; echo > ready; while :; do "
               "sleep 0.01; done) & wait",
       .argument = scratch.path().string()},
      scratch.path() / "ready");
  EXPECT_TRUE(end.stopped && !end.out_of_time);
  EXPECT_EQ(end.signal, SIGTERM);
  EXPECT_TRUE(fs::exists(scratch.path() / "ended"));
}

TEST(ShellCommand, IsKilledWhenItIsGivenUp) {
  ScratchFolder const scratch("shell_killed");
  {
    RunningCommand running({.text = "cd \"$1\"; while :; do sleep 0.01; echo > alive; done",
                            .argument = scratch.path().string()});
    while (!fs::exists(scratch.path() / "alive")) running.has_ended(false);
  }
  fs::remove(scratch.path() / "alive");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(fs::exists(scratch.path() / "alive"));
}

TEST(ShellCommand, LosesWhatALauncherSaidToItsRank) {
  char const* const ours[] = {"HOME=/root",     "OMPI_COMM_WORLD_RANK=3",   "PMIX_RANK=3",
                              "PMI_FD=5",       "OMPI_ALLOW_RUN_AS_ROOT=1", "RESHARD_TARGET=old",
                              "SLURM_JOB_ID=7", "SLURM_STEP_NUM_TASKS=4",   nullptr};
  EXPECT_EQ(environment_for_commands(ours, {{"RESHARD_TARGET", "new"}}),
            (std::vector<std::string>{"HOME=/root", "OMPI_ALLOW_RUN_AS_ROOT=1", "SLURM_JOB_ID=7",
                                      "RESHARD_TARGET=new"}));
}

TEST(ShellCommand, ThatCannotBeStartedOrWasWaitedForElsewhereIsAnError) {
  test::expect_refused(ErrorKind::io, "/bin/sh: start failed: Argument list too long", [] {
    RunningCommand const running({.text = "exit", .argument = std::string(1 << 20, 'x')});
  });
  RunningCommand running({.text = "exit"});
  ASSERT_GT(::waitpid(-1, nullptr, 0), 0);
  test::expect_refused(ErrorKind::io, "/bin/sh: wait for failed",
                       [&] { (void)running.has_ended(false); });
}

}  // namespace
}  // namespace reshard
