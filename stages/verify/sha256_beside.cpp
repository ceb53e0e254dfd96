#include "stages/verify/sha256_beside.hpp"

#include <utility>

namespace reshard {

Sha256Beside::~Sha256Beside() {
  std::lock_guard const lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void Sha256Beside::begin(Sha256& sum, std::span<std::byte const> bytes) {
  std::lock_guard const lock(mutex_);
  sum_ = &sum;
  bytes_ = bytes;
  changed_.notify_all();
}

void Sha256Beside::settle() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return sum_ == nullptr; });
}

void Sha256Beside::wait() {
  settle();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Sha256Beside::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ended_ || sum_ != nullptr; });
    if (sum_ == nullptr) return;
    lock.unlock();
    std::exception_ptr failure;
    try {
      sum_->add(bytes_);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    sum_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace reshard
