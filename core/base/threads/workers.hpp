#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/error.hpp"

namespace reshard {

/// Threads that share the items of a piece of work with the thread that asks for it. Used by one
/// thread.
class Workers {
 public:
  /// Called with the number of an item and the number of the worker that has it.
  using Work = std::function<void(std::size_t item, std::size_t worker)>;

  /// `threads`: the number of threads, the calling one included, at least 1. A refusal of the
  /// system is an Error of kind resources.
  explicit Workers(std::size_t threads = 1);
  ~Workers();
  Workers(Workers const&) = delete;
  Workers& operator=(Workers const&) = delete;

  std::size_t count() const { return threads_.size() + 1; }

  /// Calls `work` once for each item in [0, items), in any order, by several threads at a time, and
  /// returns when all have ended. Once a call has thrown, no further one begins; the exception of
  /// the lowest item is rethrown.
  void run(std::size_t items, Work const& work);

 private:
  void serve(std::size_t worker);
  void take_part(std::size_t worker);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t rounds_ = 0;  ///< pieces of work so far
  std::size_t busy_ = 0;    ///< threads that have not ended the last of them
  bool ended_ = false;
  // Of the piece of work under way:
  Work const* work_ = nullptr;
  std::size_t items_ = 0;
  std::size_t next_ = 0;
  std::size_t failed_item_ = 0;
  std::optional<Error> failure_;
  std::vector<std::jthread> threads_;  // last member: the threads use those above
};

/// Calls `work` once for each item, for calls that wait for the server of a file system rather than
/// compute: many at a time, however few cores there are. Fewer where the system gives fewer threads
/// or descriptors. Ends as Workers::run().
void overlapped(std::size_t items, std::function<void(std::size_t item)> const& work);

}  // namespace reshard
