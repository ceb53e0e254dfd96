#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include <sys/uio.h>

#include "core/base/file_set.hpp"
#include "core/plan/extent_batch.hpp"
#include "stages/write/edge_bytes.hpp"
#include "stages/write/extent_sink.hpp"

namespace reshard {

/// Sees the bytes of every extent before they are written, in ascending order of (file, offset)
/// within a round. Called from one thread.
using WriteObserver = std::function<void(std::uint32_t file, std::uint64_t offset_bytes,
                                         std::span<std::byte const> bytes)>;

/// How the page cache is kept out of large writes; in the order of their measured speed on ext4.
/// Preallocated blocks made no difference to any.
enum class WriteMode {
  automatic,  ///< the first of the ones below that the file system takes
  dontcache,  ///< pwritev2 with RWF_DONTCACHE (Linux 6.14): pages leave the cache when they are on
              ///< the device
  window,     ///< buffered; what lies further back than a window is written out and dropped
  buffered,   ///< buffered, all is left to the kernel
};

std::string_view name_of(WriteMode mode);

/// Writes the extents of rounds from staging memory into files that exist at full size. Neighbours
/// are joined into large vectored writes. Nothing is synced: the caller syncs the files when all is
/// written. Used by one thread. Bytes in pages that another rank writes, too, are kept back where
/// there is something that keeps them.
class ExtentWriter : public ExtentSink {
 public:
  /// What is given outlives the writer; an empty observer is allowed, and no `edges`.
  ExtentWriter(FileSet& files, WriteObserver const& observer, WriteMode mode = WriteMode::automatic,
               EdgeBytes* edges = nullptr)
      : files_(files), observer_(observer), mode_(mode), edges_(edges) {}

  /// Writes staging[extent.at, +extent.bytes) for every extent. The extents do not overlap in the
  /// files.
  void write(std::span<Extent const> extents, std::byte* staging) override;
  /// Lets go of the files.
  void close() override;

  WriteStats const& stats() const override { return stats_; }
  std::string_view mode_name() const override { return name_of(mode_); }
  /// The mode in use; `automatic` until the first large write has tried.
  WriteMode mode() const { return mode_; }

 private:
  struct Written {
    std::shared_ptr<File const> file;
    std::uint64_t offset_bytes = 0;
    std::uint64_t bytes = 0;
  };
  void write_batch(ExtentBatch const& batch, std::byte* staging);
  bool write_uncached(ExtentBatch const& batch, File const& file, std::span<iovec const> parts);
  void slide_window(Written written);

  FileSet& files_;
  WriteObserver const& observer_;
  WriteMode mode_;
  EdgeBytes* edges_;
  WriteStats stats_;
  std::deque<Written> window_;
  std::uint64_t window_bytes_ = 0;
};

}  // namespace reshard
