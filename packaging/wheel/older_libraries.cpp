// Linked into the program of the wheel, so that what Debian 12 compiles runs where glibc is 2.28,
// as on RHEL 8. libstdc++ is linked in. Here are the symbols of a newer glibc that it uses, and the
// C++ libraries that Debian has as shared ones only, which use a newer libstdc++: their sources are
// in their headers.

#include <pthread.h>
#include <sys/random.h>
#include <time.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>

#include <fmt/format-inl.h>
#include <spdlog/common-inl.h>
#include <spdlog/details/backtracer-inl.h>
#include <spdlog/details/log_msg-inl.h>
#include <spdlog/details/log_msg_buffer-inl.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/details/os-inl.h>
#include <spdlog/details/periodic_worker-inl.h>
#include <spdlog/details/registry-inl.h>
#include <spdlog/logger-inl.h>
#include <spdlog/pattern_formatter-inl.h>
#include <spdlog/sinks/ansicolor_sink-inl.h>
#include <spdlog/sinks/base_sink-inl.h>
#include <spdlog/sinks/sink-inl.h>
#include <spdlog/sinks/stdout_sinks-inl.h>
#include <spdlog/spdlog-inl.h>
#define TOML_IMPLEMENTATION
#include <toml++/toml.h>

template char fmt::detail::decimal_point_impl(fmt::detail::locale_ref);
template fmt::detail::thousands_sep_result<char> fmt::detail::thousands_sep_impl(
    fmt::detail::locale_ref);

using spdlog::details::console_mutex;
using spdlog::details::console_nullmutex;
template class spdlog::sinks::base_sink<std::mutex>;
template class spdlog::sinks::base_sink<spdlog::details::null_mutex>;
template class spdlog::sinks::stdout_sink_base<console_mutex>;
template class spdlog::sinks::stdout_sink_base<console_nullmutex>;
template class spdlog::sinks::stderr_sink<console_mutex>;
template class spdlog::sinks::stderr_sink<console_nullmutex>;
template class spdlog::sinks::ansicolor_sink<console_mutex>;
template class spdlog::sinks::ansicolor_stdout_sink<console_mutex>;

// glibc has one variable with three names. To the linker they are three in libraries that are lists
// of symbols, and a program gets a copy of the one that it uses, which glibc does not fill. So the
// variable is here, with the three names, and glibc uses this one.
asm(R"(
  .pushsection .bss
  .balign 8
  .globl environ, __environ, _environ
  .type environ, @object
  .type __environ, @object
  .type _environ, @object
  .size environ, 8
  .size __environ, 8
  .size _environ, 8
environ:
__environ:
_environ:
  .zero 8
  .popsection
)");

extern "C" {
/// glibc 2.32: whether the process has one thread only. With false, references are counted
/// atomically.
char __libc_single_threaded = 0;

/// glibc 2.30, for std::condition_variable::wait_for: the older function knows the wall clock only.
/// Where that is set meanwhile, the wait is as much longer or shorter.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           timespec const* until) {
  constexpr long second = 1'000'000'000;
  timespec now{};
  timespec then{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &then);
  then.tv_sec += until->tv_sec - now.tv_sec;
  then.tv_nsec += until->tv_nsec - now.tv_nsec;
  for (; then.tv_nsec < 0; then.tv_nsec += second) --then.tv_sec;
  for (; then.tv_nsec >= second; then.tv_nsec -= second) ++then.tv_sec;
  return pthread_cond_timedwait(condition, mutex, &then);
}

/// glibc 2.36, for std::random_device.
std::uint32_t arc4random() {
  std::uint32_t value = 0;
  if (getentropy(&value, sizeof value) != 0) {
    std::abort();
  }
  return value;
}
}
