#include "core/base/threads/workers.hpp"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "core/base/capture.hpp"

namespace reshard {
namespace {

TEST(Workers, DoEachItemOnce) {
  for (std::size_t const threads : {1U, 2U, 7U}) {
    Workers workers(threads);
    EXPECT_EQ(workers.count(), threads);
    for (std::size_t const items : {0U, 1U, 5U, 1000U}) {
      std::vector<std::atomic<int>> done(items);
      workers.run(items, [&](std::size_t item, std::size_t worker) {
        EXPECT_LT(worker, threads);
        ++done[item];
      });
      for (std::atomic<int> const& times : done) EXPECT_EQ(times, 1);
    }
  }
}

TEST(Workers, WorkAtTheSameTime) {
  Workers workers(3);
  std::mutex mutex;
  std::set<std::size_t> seen;
  std::atomic<int> waiting = 0;
  workers.run(3, [&](std::size_t, std::size_t worker) {
    ++waiting;
    while (waiting < 3) std::this_thread::yield();  // all three are under way together
    std::lock_guard const lock(mutex);
    seen.insert(worker);
  });
  EXPECT_EQ(seen.size(), 3U);
}

TEST(Workers, ThrowTheErrorOfTheLowestItem) {
  for (std::size_t const threads : {1U, 4U}) {
    Workers workers(threads);
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> done = 0;
      try {
        workers.run(100, [&](std::size_t item, std::size_t) {
          if (item == 3 || item == 5) fail(ErrorKind::source, "item {}", item);
          ++done;
        });
        FAIL() << "no error";
      } catch (Error const& error) {
        EXPECT_EQ(error.sentence(), "item 3");
      }
      EXPECT_LT(done, 100);
    }
    std::atomic<int> after = 0;  // an error is over with its work
    workers.run(10, [&](std::size_t, std::size_t) { ++after; });
    EXPECT_EQ(after, 10);
  }
}

TEST(Capture, WhatTheSystemHasNoRoomForIsOfKindResources) {
  auto const thrown = [](auto const& exception) { return capture([&] { throw exception; }); };
  auto const thread =
      thrown(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)));
  ASSERT_TRUE(thread);
  EXPECT_EQ(thread->kind(), ErrorKind::resources);
  EXPECT_TRUE(thread->sentence().starts_with("a thread could not be started: "));
  EXPECT_NE(thread->sentence().find("Lower run.threads"), std::string::npos);
  auto const memory = thrown(std::bad_alloc());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->kind(), ErrorKind::resources);
  auto const other =
      thrown(std::system_error(std::make_error_code(std::errc::operation_not_permitted)));
  ASSERT_TRUE(other);
  EXPECT_EQ(other->kind(), ErrorKind::internal);  // of a mutex, say
}

TEST(Overlapped, CallsAreUnderWayTogetherWhateverTheCores) {
  std::atomic<int> waiting = 0;
  std::vector<std::atomic<int>> done(64);
  overlapped(done.size(), [&](std::size_t item) {
    ++waiting;
    while (waiting < 32) std::this_thread::yield();  // as many threads as halves of the items
    ++done[item];
  });
  for (std::atomic<int> const& times : done) EXPECT_EQ(times, 1);
}

TEST(Overlapped, ThrowsTheErrorOfTheLowestItem) {
  for (std::size_t const items : {1U, 3U, 500U}) {
    try {
      overlapped(items, [&](std::size_t item) { fail(ErrorKind::io, "item {}", item); });
      FAIL() << "no error";
    } catch (Error const& error) {
      EXPECT_EQ(error.sentence(), "item 0");
    }
  }
  overlapped(0, [](std::size_t) { FAIL() << "there is none"; });
}

/// Sets a limit of this process as long as it lives.
class Limited {
 public:
  Limited(int what, rlim_t value) : what_(what) {
    ::getrlimit(what_, &before_);
    rlimit const now{value, before_.rlim_max};
    EXPECT_EQ(::setrlimit(what_, &now), 0);
  }
  ~Limited() { ::setrlimit(what_, &before_); }
  Limited(Limited const&) = delete;
  Limited& operator=(Limited const&) = delete;

 private:
  int what_;
  rlimit before_{};
};

std::size_t open_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST(Overlapped, LeavesDescriptorsWhereThereAreFew) {
  Limited const limited(RLIMIT_NOFILE, open_descriptors() + 8);
  std::atomic<int> refused = 0;
  std::atomic<int> under_way = 0;
  std::atomic<int> most = 0;
  overlapped(200, [&](std::size_t) {
    int const now = ++under_way;
    for (int known = most; known < now && !most.compare_exchange_weak(known, now);) continue;
    int const file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (file < 0) ++refused;
    if (file >= 0) ::close(file);
    --under_way;
  });
  EXPECT_EQ(refused, 0);
  EXPECT_LE(most, 4);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Overlapped, WorksWithTheThreadsThatItGets) {
  std::ifstream status("/proc/self/statm");
  std::uint64_t pages = 0;
  status >> pages;
  std::vector<std::atomic<int>> done(400);
  {
    Limited const limited(RLIMIT_AS, pages * 4096 + (std::uint64_t{40} << 20));  // a few stacks
    overlapped(done.size(), [&](std::size_t item) { ++done[item]; });
  }
  for (std::atomic<int> const& times : done) EXPECT_EQ(times, 1);
}
#endif

}  // namespace
}  // namespace reshard
