#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace reshard {

/// A command for /bin/sh, started from a process that uses MPI.
struct ShellCommand {
  std::string text;
  std::string argument = {};                                          ///< its $1
  std::vector<std::pair<std::string, std::string>> environment = {};  ///< in addition
  std::int64_t limit_seconds = 0;  ///< it is ended after that; 0: never
};

/// How it ended.
struct ShellEnd {
  int exit_code = 0;
  int signal = 0;            ///< that ended it; 0 for none
  bool out_of_time = false;  ///< limit_seconds were over
  bool stopped = false;      ///< this program was told to stop meanwhile
  double seconds = 0;

  bool succeeded() const { return exit_code == 0 && signal == 0 && !out_of_time; }
};

/// Without what an MPI launcher tells its ranks about themselves: a command that uses MPI itself
/// would take itself for one of them.
std::vector<std::string> environment_for_commands(
    char const* const* environment, std::vector<std::pair<std::string, std::string>> const& more);

/// A command that is running. Its output goes to stderr, its input is empty, no other descriptor is
/// handed on. It is a process group of its own.
class RunningCommand {
 public:
  /// Error of kind resources or io when it cannot be started.
  explicit RunningCommand(ShellCommand const& command);
  /// Kills what is left of the group, unless has_ended() has said so.
  ~RunningCommand();
  RunningCommand(RunningCommand const&) = delete;
  RunningCommand& operator=(RunningCommand const&) = delete;

  /// Whether it has ended; call it again and again. When `stop` is set, or the limit is over, the
  /// group gets SIGTERM, and SIGKILL half a minute later; then all of the group must have ended.
  bool has_ended(bool stop);
  /// After has_ended().
  ShellEnd const& end() const { return end_; }

 private:
  using Clock = std::chrono::steady_clock;
  void reap();
  void press(Clock::time_point now);
  bool is_group_alive() const;

  std::int64_t limit_seconds_;
  Clock::time_point began_;
  pid_t group_ = 0;
  bool reaped_ = false;
  bool ended_ = false;
  std::optional<Clock::time_point> asked_;
  ShellEnd end_;
};

}  // namespace reshard
