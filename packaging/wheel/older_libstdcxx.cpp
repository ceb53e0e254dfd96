// Linked into the program of the wheel, so that it needs the libstdc++ of GCC 11 only, which RHEL 9
// has, though GCC 12 compiles it: std::condition_variable::wait has the version GLIBCXX_3.4.30
// there, and nothing else of that version is used. Debian's libspdlog.so needs it too, so what is
// used of spdlog is compiled here.

#include <pthread.h>

#include <condition_variable>
#include <mutex>

#include <spdlog/common-inl.h>
#include <spdlog/details/backtracer-inl.h>
#include <spdlog/details/log_msg-inl.h>
#include <spdlog/details/log_msg_buffer-inl.h>
#include <spdlog/details/os-inl.h>
#include <spdlog/logger-inl.h>
#include <spdlog/pattern_formatter-inl.h>
#include <spdlog/sinks/base_sink-inl.h>
#include <spdlog/sinks/sink-inl.h>
#include <spdlog/sinks/stdout_sinks-inl.h>

template class spdlog::sinks::stdout_sink_base<spdlog::details::console_nullmutex>;
template class spdlog::sinks::stderr_sink<spdlog::details::console_nullmutex>;

/// What the linker calls for std::condition_variable::wait(std::unique_lock<std::mutex>&), and what
/// that does in libstdc++.
extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(
    std::condition_variable* condition, std::unique_lock<std::mutex>* lock) {
  pthread_cond_wait(condition->native_handle(), lock->mutex()->native_handle());
}
