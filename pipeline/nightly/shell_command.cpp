#include "pipeline/nightly/shell_command.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/files/file.hpp"
#include "core/base/files/open_descriptors.hpp"

extern char** environ;

namespace reshard {
namespace {

constexpr char const* shell = "/bin/sh";
constexpr std::chrono::seconds grace{30};  ///< between SIGTERM and SIGKILL

/// Beginnings of the names that launchers set; the exceptions are settings of a user.
constexpr std::array<std::string_view, 13> of_launchers = {
    "OMPI_",       "PMIX_",     "PMI_",  "PRTE_", "ORTE_",      "HYDI_",       "MPI_LOCAL",
    "SLURM_STEP_", "ALPS_APP_", "PALS_", "JSM_",  "FLUX_TASK_", "LSB_PJL_TASK"};
constexpr std::string_view of_users = "OMPI_ALLOW_RUN_AS_ROOT";

/// Arguments of posix_spawn, for the length of a scope.
class SpawnTerms {
 public:
  SpawnTerms() {
    ::posix_spawnattr_init(&attributes_);
    ::posix_spawn_file_actions_init(&actions_);
    sigset_t none;
    sigset_t usual;
    ::sigemptyset(&none);
    ::sigemptyset(&usual);
    for (int const signal : {SIGPIPE, SIGXFSZ, SIGUSR1, SIGTERM, SIGINT, SIGHUP})
      ::sigaddset(&usual, signal);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &usual);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions_, STDERR_FILENO, STDOUT_FILENO);
  }
  ~SpawnTerms() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnTerms(SpawnTerms const&) = delete;
  SpawnTerms& operator=(SpawnTerms const&) = delete;

  /// 0, or an errno.
  int spawn(pid_t& process, char* const* words, char* const* environment) const {
    leave_descriptors(Leave::on_exec);  // those of MPI among them
    return ::posix_spawn(&process, shell, &actions_, &attributes_, words, environment);
  }

 private:
  posix_spawnattr_t attributes_{};
  posix_spawn_file_actions_t actions_{};
};

/// Pointers to texts that outlive them, with a null at the end.
std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

pid_t start(ShellCommand const& command) {
  // Orphans become children of this process and are reaped here: in a container perhaps no other
  // process does that, and the group would never be empty.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::vector<std::string> words = {shell, "-c", command.text, "nightly.after", command.argument};
  std::vector<std::string> environment = environment_for_commands(environ, command.environment);
  SpawnTerms const terms;
  pid_t process = 0;
  int const refused = terms.spawn(process, pointers(words).data(), pointers(environment).data());
  if (refused != 0) fail_errno(shell, "start", refused);
  return process;
}

}  // namespace

std::vector<std::string> environment_for_commands(
    char const* const* environment, std::vector<std::pair<std::string, std::string>> const& more) {
  std::vector<std::string> all;
  for (; *environment != nullptr; ++environment) {
    std::string_view const entry = *environment;
    bool const launcher =
        std::any_of(of_launchers.begin(), of_launchers.end(),
                    [&](std::string_view begin) { return entry.starts_with(begin); });
    bool const replaced = std::any_of(more.begin(), more.end(), [&](auto const& one) {
      return entry.starts_with(one.first + "=");
    });
    if ((!launcher || entry.starts_with(of_users)) && !replaced) all.emplace_back(entry);
  }
  for (auto const& [name, value] : more) all.push_back(name + "=" + value);
  return all;
}

RunningCommand::RunningCommand(ShellCommand const& command)
    : limit_seconds_(command.limit_seconds), began_(Clock::now()), group_(start(command)) {}

RunningCommand::~RunningCommand() {
  if (ended_) return;
  ::kill(-group_, SIGKILL);
  while (::waitpid(-group_, nullptr, 0) > 0) {
  }
}

void RunningCommand::reap() {
  int status = 0;
  for (pid_t ended = 0; (ended = ::waitpid(-group_, &status, WNOHANG)) != 0;) {
    if (ended < 0 && errno == EINTR) continue;
    if (ended < 0 && !reaped_) fail_errno(shell, "wait for", errno);
    if (ended < 0) return;  // no other is left
    if (ended != group_) continue;
    reaped_ = true;
    if (WIFSIGNALED(status))
      end_.signal = WTERMSIG(status);
    else
      end_.exit_code = WEXITSTATUS(status);
  }
}

void RunningCommand::press(Clock::time_point now) {
  if (!asked_) {
    ::kill(-group_, SIGTERM);
    asked_ = now;
  }
  if (now - *asked_ > grace) ::kill(-group_, SIGKILL);
}

bool RunningCommand::is_group_alive() const { return ::kill(-group_, 0) == 0; }

bool RunningCommand::has_ended(bool stop) {
  if (ended_) return true;
  reap();
  auto const now = Clock::now();
  if (!reaped_) {
    end_.stopped = end_.stopped || stop;
    end_.out_of_time = end_.out_of_time ||
                       (limit_seconds_ > 0 && now - began_ > std::chrono::seconds(limit_seconds_));
  }
  if (end_.stopped || end_.out_of_time) press(now);
  // The shell may be gone before what it has started.
  ended_ = reaped_ && (!asked_ || !is_group_alive() || now - *asked_ > 2 * grace);
  if (ended_) end_.seconds = std::chrono::duration<double>(now - began_).count();
  return ended_;
}

}  // namespace reshard
