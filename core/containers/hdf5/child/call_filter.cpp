#include "core/containers/hdf5/child/call_filter.hpp"

#include <initializer_list>
#include <memory>

#include <fcntl.h>
#include <seccomp.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

namespace reshard::hdf5 {
namespace {

/// The level of libseccomp at which a process can be ended with all threads (Linux 4.14).
constexpr unsigned level_with_kill_process = 3;

/// Some bits of one argument are zero.
scmp_arg_cmp without_bits(unsigned argument, scmp_datum_t bits) {
  return {argument, SCMP_CMP_MASKED_EQ, bits, 0};
}
scmp_arg_cmp equal_to(unsigned argument, scmp_datum_t value) {
  return {argument, SCMP_CMP_EQ, value, 0};
}

class Filter {
 public:
  explicit Filter(std::uint32_t otherwise)
      : context_(seccomp_init(otherwise)), good_(context_ != nullptr) {}

  void add(std::uint32_t action, std::initializer_list<int> calls) {
    for (int const call : calls)
      good_ = good_ && seccomp_rule_add(context_.get(), action, call, 0) == 0;
  }
  void add(std::uint32_t action, int call, scmp_arg_cmp condition) {
    good_ = good_ && seccomp_rule_add_array(context_.get(), action, call, 1, &condition) == 0;
  }
  bool load() { return good_ && seccomp_load(context_.get()) == 0; }

 private:
  struct Release {
    void operator()(void* context) const { seccomp_release(context); }
  };
  std::unique_ptr<void, Release> context_;
  bool good_;
};

}  // namespace

bool can_filter_calls() { return seccomp_api_get() >= level_with_kill_process; }

bool allow_only_reading(int answers) {
  if (!can_filter_calls()) return false;
  Filter filter(SCMP_ACT_KILL_PROCESS);
  // Reading and computing.
  filter.add(SCMP_ACT_ALLOW,
             {SCMP_SYS(read), SCMP_SYS(pread64), SCMP_SYS(lseek), SCMP_SYS(close), SCMP_SYS(fstat),
              SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(futex),
              SCMP_SYS(sched_yield), SCMP_SYS(getrandom)});
  // Calls of libc for the allocator, the time and the end of the process.
  filter.add(SCMP_ACT_ALLOW, {SCMP_SYS(sched_getaffinity), SCMP_SYS(clock_gettime),
                              SCMP_SYS(gettimeofday), SCMP_SYS(time), SCMP_SYS(getpid),
                              SCMP_SYS(gettid), SCMP_SYS(rt_sigreturn), SCMP_SYS(rt_sigprocmask),
                              SCMP_SYS(rt_sigaction), SCMP_SYS(exit), SCMP_SYS(exit_group)});
  // Calls of libhdf5 with the file's path before it has opened it, and those of forbid_paths()
  // itself.
  filter.add(SCMP_ACT_ALLOW,
             {SCMP_SYS(newfstatat), SCMP_SYS(stat), SCMP_SYS(lstat), SCMP_SYS(statx),
              SCMP_SYS(readlink), SCMP_SYS(readlinkat), SCMP_SYS(getcwd), SCMP_SYS(prctl),
              SCMP_SYS(seccomp), SCMP_SYS(setrlimit), SCMP_SYS(prlimit64)});
  constexpr scmp_datum_t changes = O_ACCMODE | O_CREAT | O_TRUNC;
  filter.add(SCMP_ACT_ALLOW, SCMP_SYS(open), without_bits(1, changes));
  filter.add(SCMP_ACT_ALLOW, SCMP_SYS(openat), without_bits(2, changes));
  filter.add(SCMP_ACT_ALLOW, SCMP_SYS(flock), without_bits(1, LOCK_EX));
  filter.add(SCMP_ACT_ALLOW, SCMP_SYS(mmap), without_bits(2, PROT_EXEC));
  filter.add(SCMP_ACT_ALLOW, SCMP_SYS(mprotect), without_bits(2, PROT_EXEC));
  filter.add(SCMP_ACT_ALLOW, SCMP_SYS(tgkill), equal_to(0, static_cast<scmp_datum_t>(::getpid())));
  for (int const command : {F_GETFD, F_GETFL})
    filter.add(SCMP_ACT_ALLOW, SCMP_SYS(fcntl), equal_to(1, static_cast<scmp_datum_t>(command)));
  for (int const descriptor : {answers, STDOUT_FILENO, STDERR_FILENO})
    filter.add(SCMP_ACT_ALLOW, SCMP_SYS(write), equal_to(0, static_cast<scmp_datum_t>(descriptor)));
  return filter.load();
}

bool forbid_paths() {
  if (!can_filter_calls()) return false;
  // The strictest of several filters counts, so this one names only the additional forbidden calls.
  Filter filter(SCMP_ACT_ALLOW);
  filter.add(SCMP_ACT_KILL_PROCESS,
             {SCMP_SYS(open), SCMP_SYS(openat), SCMP_SYS(stat), SCMP_SYS(lstat), SCMP_SYS(statx),
              SCMP_SYS(readlink), SCMP_SYS(readlinkat), SCMP_SYS(getcwd), SCMP_SYS(prctl),
              SCMP_SYS(seccomp), SCMP_SYS(setrlimit), SCMP_SYS(prlimit64), SCMP_SYS(flock)});
  filter.add(SCMP_ACT_KILL_PROCESS, SCMP_SYS(newfstatat),
             {3, SCMP_CMP_MASKED_EQ, AT_EMPTY_PATH, 0});  // libc's fstat() has AT_EMPTY_PATH
  return filter.load();
}

}  // namespace reshard::hdf5
