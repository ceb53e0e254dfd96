#include "core/containers/hdf5/child/child.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/files/open_descriptors.hpp"
#include "core/containers/hdf5/child/call_filter.hpp"
#include "core/containers/hdf5/names.hpp"

namespace reshard::hdf5 {
namespace {

using Clock = std::chrono::steady_clock;

/// The head of a child's answer.
struct AnswerHead {
  enum class Kind : std::uint64_t {
    answer = 0x72657375,
    refusal = 0x72656675,
    no_memory = 0x6e6f6d65
  };
  Kind kind;
  std::uint64_t bytes;
};

// In the child.

void set_limit(__rlimit_resource resource, rlim_t value, rlim_t more_in_the_end = 0) {
  rlimit const limit = {value, value + more_in_the_end};
  ::setrlimit(resource, &limit);
}

/// The size of this process' address space.
std::uint64_t address_space_bytes() {
  char text[64] = {};
  int const descriptor = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return 0;
  ssize_t const got = ::read(descriptor, text, sizeof text - 1);
  ::close(descriptor);
  return got <= 0 ? 0
                  : std::strtoull(text, nullptr, 10) *
                        static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

/// Output of libc about broken memory, and all other output, is dropped.
void drop_output() {
  if (int const nowhere = ::open("/dev/null", O_WRONLY); nowhere >= 0) {
    ::dup2(nowhere, STDOUT_FILENO);
    ::dup2(nowhere, STDERR_FILENO);
  }
}

void take_limits(ChildLimits const& limits) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Handlers of MPI or of this program would print or wait; a crash has to be a quiet end here.
  for (int const number :
       {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGXCPU, SIGTERM, SIGINT, SIGHUP, SIGPIPE})
    ::signal(number, SIG_DFL);
  // The same restrictions as far as possible for systems without a filter of system calls.
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  set_limit(RLIMIT_FSIZE, 0);
  set_limit(RLIMIT_NPROC, 0);
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_CPU, limits.cpu_seconds, 1);  // SIGXCPU first, which gives the reason
  if (std::uint64_t const now = address_space_bytes(); now != 0)
    set_limit(RLIMIT_AS, now + limits.more_memory_bytes);
}

bool write_all(int descriptor, char const* bytes, std::size_t count) {
  while (count > 0) {
    ssize_t const put = ::write(descriptor, bytes, count);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    bytes += put;
    count -= static_cast<std::size_t>(put);
  }
  return true;
}

void say(int descriptor, AnswerHead::Kind kind, std::string_view text) {
  AnswerHead const head = {kind, text.size()};
  if (write_all(descriptor, reinterpret_cast<char const*>(&head), sizeof head))
    write_all(descriptor, text.data(), text.size());
}

[[noreturn]] void be_child(File const& file, ChildWork work, ChildLimits const& limits,
                           int descriptor) {
  take_limits(limits);
  drop_output();
  leave_descriptors(Leave::now, std::array{file.descriptor(), descriptor});
  allow_only_reading(descriptor);
#ifdef RESHARD_RECORD_REFUSALS
  ::unsetenv("RESHARD_REFUSALS_TO");  // this process may not open files; the parent records
#endif
  try {
    say(descriptor, AnswerHead::Kind::answer, work(file));
  } catch (Error const& error) {
    say(descriptor, AnswerHead::Kind::refusal, error.sentence());
  } catch (...) {
    say(descriptor, AnswerHead::Kind::no_memory, {});
  }
  ::_exit(0);
}

// In the parent.

/// A child that is gone at the end of the scope.
class Child {
 public:
  explicit Child(pid_t process) : process_(process) {}
  ~Child() { end(); }
  Child(Child const&) = delete;
  Child& operator=(Child const&) = delete;

  /// Ends it if it still runs; how it ended.
  int end() {
    if (process_ < 0) return status_;
    ::kill(process_, SIGKILL);
    while (::wait4(process_, &status_, 0, &used_) < 0 && errno == EINTR) continue;
    process_ = -1;
    return status_;
  }

  /// Pre: it has ended.
  double cpu_seconds() const {
    auto const seconds = [](timeval const& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(used_.ru_utime) + seconds(used_.ru_stime);
  }

 private:
  pid_t process_;
  int status_ = 0;
  rusage used_{};
};

enum class Outcome { complete, ended, late };

/// Fills `into` from a pipe, or returns the reason for a failure.
Outcome read_all(int descriptor, std::span<char> into, Clock::time_point deadline) {
  while (!into.empty()) {
    auto const left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return Outcome::late;
    pollfd wanted = {descriptor, POLLIN, 0};
    int const ready = ::poll(&wanted, 1, static_cast<int>(std::min<std::int64_t>(left + 1, 1000)));
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    ssize_t const got = ready < 0 ? -1 : ::read(descriptor, into.data(), into.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return Outcome::ended;
    into = into.subspan(static_cast<std::size_t>(got));
  }
  return Outcome::complete;
}

[[noreturn]] void refuse(File const& file, std::string_view what) {
  fail(ErrorKind::source,
       "{}: {} while reading the contents of the file. The file is damaged: compare it "
       "with the original.",
       file.path().string(), what);
}

[[noreturn]] void refuse_ended(File const& file, int status) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
    refuse(file, "libhdf5 used up its CPU time");
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
    refuse(file, "libhdf5 made a system call that reading does not need, and was stopped");
  if (WIFSIGNALED(status))
    refuse(file, fmt::format("libhdf5 crashed (signal {}, {})", WTERMSIG(status),
                             ::strsignal(WTERMSIG(status))));
  refuse(file, "libhdf5 ended the process");
}

/// An Error of kind io: hostile bytes could only make the child compute, and that has a limit of
/// its own.
[[noreturn]] void fail_late(File const& file, Child& child, ChildLimits const& limits) {
  child.end();
  fail(ErrorKind::io,
       "{}: the contents of the file were not read within {} s, of which libhdf5 used {:.1f} s of "
       "CPU time: the file system or this machine is too slow. Check it, then run again.",
       file.path().string(), limits.wall_seconds, child.cpu_seconds());
}

std::string answer_of(File const& file, Child& child, int descriptor, ChildLimits const& limits) {
  auto const deadline = Clock::now() + std::chrono::seconds(limits.wall_seconds);
  auto const check = [&](Outcome outcome) {
    if (outcome == Outcome::late) fail_late(file, child, limits);
    if (outcome == Outcome::ended) refuse_ended(file, child.end());
  };
  AnswerHead head{};
  check(read_all(descriptor, {reinterpret_cast<char*>(&head), sizeof head}, deadline));
  using Kind = AnswerHead::Kind;
  if (head.kind == Kind::no_memory)
    refuse(file, fmt::format("libhdf5 asked for more than {} of memory",
                             human_bytes(limits.more_memory_bytes)));
  constexpr std::uint64_t longest_sentence = 64 * 1024;
  if (head.bytes > (head.kind == Kind::answer ? limits.answer_bytes : longest_sentence))
    refuse(file, "libhdf5 returned too much data");
  std::string text(head.bytes, '\0');
  check(read_all(descriptor, text, deadline));
  if (head.kind == Kind::answer) return text;
  if (head.kind != Kind::refusal || !is_line(text))
    refuse(file, "libhdf5 returned an invalid answer");
  throw Error(ErrorKind::source, text);
}

}  // namespace

void open_no_more_files() {
  set_limit(RLIMIT_NOFILE, 0);
  forbid_paths();
}

std::string ask_child(File const& file, ChildWork work, ChildLimits const& limits) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno(file.path(), "making a pipe", errno);
  pid_t const process = ::fork();
  int const reason = errno;
  if (process == 0) {
    ::close(ends[0]);
    be_child(file, work, limits, ends[1]);
  }
  ::close(ends[1]);
  struct ReadEnd {
    int descriptor;
    ~ReadEnd() { ::close(descriptor); }
  } const answers = {ends[0]};
  if (process < 0)
    fail(ErrorKind::resources,
         "{}: no process could be started to read it: {}. Raise the process limit, then run "
         "again.",
         file.path().string(), system_reason(reason));
  Child child(process);
  return answer_of(file, child, answers.descriptor, limits);
}

}  // namespace reshard::hdf5
