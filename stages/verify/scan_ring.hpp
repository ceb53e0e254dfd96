#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <queue>

#include "stages/verify/scan_window.hpp"

namespace reshard {

/// A window whose bytes are there.
struct FilledWindow {
  std::uint32_t file = 0;
  std::uint64_t file_bytes = 0;
  std::shared_ptr<FileBlocks const> blocks;  ///< that the window's are of
  ScanWindow window;
  std::byte const* bytes = nullptr;  ///< that of window.begin
};

/// Hands windows from the thread that reads to the one that works on them, in a fixed number of
/// buffers.
class ScanRing {
 public:
  ScanRing(std::size_t buffers, std::uint64_t window_bytes);

  // The thread that reads:
  /// The next buffer as soon as it is free; nullptr when no more is needed. The bytes of the buffer
  /// before it are still there.
  std::byte* free_buffer();
  void give(FilledWindow window);
  /// Nothing more comes; with a failure, take() throws it in its turn.
  void end(std::exception_ptr failure);

  // The thread that works:
  /// The oldest window that was not taken yet; nothing at the end.
  std::optional<FilledWindow> take();
  /// The window that was taken last is not needed any more.
  void give_back();
  /// No more windows are wanted.
  void stop();

 private:
  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete[](memory, std::align_val_t{scan_page_bytes});
    }
  };
  std::size_t buffers_;
  std::uint64_t window_bytes_;
  std::unique_ptr<std::byte[], Free> memory_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<FilledWindow> filled_;
  std::uint64_t given_ = 0;
  std::uint64_t given_back_ = 0;
  bool ended_ = false;
  bool stopped_ = false;
  std::exception_ptr failure_;
};

}  // namespace reshard
