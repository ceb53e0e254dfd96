#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/file_set.hpp"
#include "core/plan/extent_batch.hpp"

namespace reshard {

struct ReadStats {
  std::uint64_t bytes = 0;
  std::uint64_t calls = 0;
};

/// Reads the extents of rounds into staging memory, neighbours in one vectored request. Never maps a file: a source that is cut short under us
/// is an Error, not a signal. Used by one thread.
class ExtentReader {
 public:
  /// `files` outlives the reader.
  explicit ExtentReader(FileSet& files) : files_(files) {}

  /// Fills staging[extent.at, +extent.bytes) for every extent. The extents do not overlap in staging.
  void read(std::span<Extent const> extents, std::byte* staging);

  ReadStats const& stats() const { return stats_; }

 private:
  void read_batch(ExtentBatch const& batch, std::byte* staging);

  FileSet& files_;
  ReadStats stats_;
};

}  // namespace reshard
