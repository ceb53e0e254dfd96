#include "core/base/workers.hpp"

#include <atomic>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace reshard
