#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string_view>

#include <sys/uio.h>

#include "core/base/files/file.hpp"

namespace reshard {

/// The ways to keep large writes from filling the page cache, in the order of their measured speed
/// on ext4. Preallocated blocks made no difference to any.
enum class WriteMode {
  automatic,  ///< the first of the ones below that the file system takes
  dontcache,  ///< pwritev2 with RWF_DONTCACHE (Linux 6.14): pages leave the cache when they are on
              ///< the device
  window,     ///< buffered; bytes before a sliding window are written out and dropped
  buffered,   ///< buffered, all is left to the kernel
};

std::string_view name_of(WriteMode mode);

/// Writes through the page cache and keeps large writes from filling it. One for all files of an
/// engine; calls may come from any thread.
class WriteCache {
 public:
  explicit WriteCache(WriteMode mode) : mode_(mode) {}

  /// Writes the parts in turn. forget() is called for the file before it is closed.
  void write(File const& file, std::uint64_t offset_bytes, std::span<iovec const> parts);
  /// The file is not written any more.
  void forget(File const& file);
  /// The mode in use; `automatic` until the first large write has tried.
  WriteMode mode() const;

 private:
  struct Written {
    File const* file = nullptr;
    std::uint64_t offset_bytes = 0;
    std::uint64_t bytes = 0;
  };
  bool write_uncached(File const& file, std::uint64_t offset_bytes, std::span<iovec const> parts);
  void slide_window(Written const& written);

  mutable std::mutex mutex_;
  WriteMode mode_;
  std::deque<Written> window_;  // oldest first
  std::uint64_t window_bytes_ = 0;
};

}  // namespace reshard
