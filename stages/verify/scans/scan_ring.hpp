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

#include "stages/verify/scans/scan_window.hpp"

namespace reshard {

/// A window with its bytes.
struct FilledWindow {
  std::uint32_t file = 0;
  std::uint64_t file_bytes = 0;
  std::shared_ptr<FileBlocks const> blocks;  ///< the blocks of the window's file
  ScanWindow window;
  std::byte const* bytes = nullptr;  ///< the byte at window.begin
};

/// Passes windows from the reading thread to the computing one, in a fixed number of buffers.
class ScanRing {
 public:
  ScanRing(std::size_t buffers, std::uint64_t window_bytes);

  // Called by the reading thread:
  /// Waits for the next free buffer; nullptr if no more is needed. The bytes of the previous buffer
  /// are still valid.
  std::byte* free_buffer();
  void give(FilledWindow window);
  /// Ends the windows; take() throws `failure`, if any, after the last window.
  void end(std::exception_ptr failure);

  // Called by the computing thread:
  /// The oldest window that was not taken yet; nullopt at the end.
  std::optional<FilledWindow> take();
  /// Frees the window that was taken last.
  void give_back();
  /// Ends the reading: no more windows are needed.
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
