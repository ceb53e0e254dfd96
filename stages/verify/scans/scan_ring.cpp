#include "stages/verify/scans/scan_ring.hpp"

namespace reshard {

ScanRing::ScanRing(std::size_t buffers, std::uint64_t window_bytes)
    : buffers_(buffers),
      window_bytes_(window_bytes),
      memory_(static_cast<std::byte*>(
          ::operator new[](buffers* window_bytes, std::align_val_t{scan_page_bytes}))) {}

std::byte* ScanRing::free_buffer() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || given_ - given_back_ < buffers_; });
  return stopped_ ? nullptr : memory_.get() + given_ % buffers_ * window_bytes_;
}

void ScanRing::give(FilledWindow window) {
  std::unique_lock const lock(mutex_);
  filled_.push(std::move(window));
  ++given_;
  changed_.notify_all();
}

void ScanRing::end(std::exception_ptr failure) {
  std::unique_lock const lock(mutex_);
  failure_ = std::move(failure);
  ended_ = true;
  changed_.notify_all();
}

std::optional<FilledWindow> ScanRing::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || !filled_.empty(); });
  if (filled_.empty()) {
    if (failure_) std::rethrow_exception(failure_);
    return std::nullopt;
  }
  FilledWindow window = std::move(filled_.front());
  filled_.pop();
  return window;
}

void ScanRing::give_back() {
  std::unique_lock const lock(mutex_);
  ++given_back_;
  changed_.notify_all();
}

void ScanRing::stop() {
  std::unique_lock const lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace reshard
