#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.hpp"

/// Faults of a machine, in a process of their own.
namespace reshard::test {

/// What `work` is refused with in a child where `prepare` was called: "exit code: sentence"; ""
/// where nothing is refused.
template <class Prepare, class Work>
std::string refused_in_child(Prepare const& prepare, Work const& work) {
  std::array<int, 2> ends = {-1, -1};
  if (::pipe(ends.data()) != 0) return "no pipe";
  pid_t const child = ::fork();
  if (child == 0) {
    std::string said;
    prepare();
    try {
      work();
    } catch (Error const& error) {
      said = fmt::format("{}: {}", exit_code(error.kind()), error.sentence());
    }
    ::syscall(SYS_write, ends[1], said.data(), said.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said(4096, '\0');
  ssize_t const got = ::read(ends[0], said.data(), said.size());
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  said.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return status == 0 ? said : fmt::format("ended with status {}", status);
}

/// The same where each system call of this number fails.
template <class Work>
std::string refused_without(long call, int reason, Work const& work) {
  return refused_in_child(
      [call, reason] {
        std::array<sock_filter, 4> filter = {{
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(reason)),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        }};
        sock_fprog const program = {filter.size(), filter.data()};
        ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) ::_exit(1);
      },
      work);
}

/// The same where no more than so many bytes of address space can be had.
template <class Work>
std::string refused_with_memory(std::uint64_t bytes, Work const& work) {
  return refused_in_child(
      [bytes] {
        std::ifstream statm("/proc/self/statm");
        std::uint64_t pages = 0;
        statm >> pages;
        rlim_t const most = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + bytes;
        rlimit const limit = {most, most};
        ::setrlimit(RLIMIT_AS, &limit);
      },
      work);
}

}  // namespace reshard::test
