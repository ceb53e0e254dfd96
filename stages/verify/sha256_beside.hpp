#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <span>
#include <thread>

#include "core/base/sha256.hpp"

namespace reshard {

/// Takes the SHA-256 of one stretch after the other on a thread of its own, while the caller does
/// something else with the same bytes. SHA-256 takes more time than all else that a scan computes,
/// and cannot be cut into parts of a file.
class Sha256Beside {
 public:
  Sha256Beside() : thread_([this] { run(); }) {}
  ~Sha256Beside();
  Sha256Beside(Sha256Beside const&) = delete;
  Sha256Beside& operator=(Sha256Beside const&) = delete;

  /// Returns at once. Bytes and sum stay where they are until wait(). Pre: wait() was called after
  /// the last one.
  void begin(Sha256& sum, std::span<std::byte const> bytes);
  /// Until that is done; throws what it threw.
  void wait();
  /// Until that is done.
  void settle() noexcept;

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  Sha256* sum_ = nullptr;  ///< of the work under way
  std::span<std::byte const> bytes_;
  std::exception_ptr failure_;
  bool ended_ = false;
  std::jthread thread_;  ///< last: it uses the others
};

}  // namespace reshard
