#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/io/file_set.hpp"
#include "core/plan/extent_batch.hpp"
#include "stages/read/view_reader.hpp"

namespace reshard {

/// Reads the extents of rounds into staging memory, neighbours in one vectored request. Never maps
/// a file: a source that is cut short under us is an Error, not a signal. Extents of views are
/// computed (ViewReader). Used by one thread.
class ExtentReader {
 public:
  /// `files` and `views` outlive the reader. View v has the file number files.size() + v.
  explicit ExtentReader(FileSet& files, std::span<SourceView const> views = {},
                        StoredBytesObserver observer = {})
      : files_(files), views_(files, views, stats_, std::move(observer)) {}
  ExtentReader(ExtentReader const&) = delete;
  ExtentReader& operator=(ExtentReader const&) = delete;

  /// Fills staging[extent.at, +extent.bytes) for every extent. The extents do not overlap in
  /// staging.
  void read(std::span<Extent const> extents, std::byte* staging);

  ReadStats const& stats() const { return stats_; }

 private:
  void read_batch(ExtentBatch const& batch, std::byte* staging);
  void compute_batch(ExtentBatch const& batch, std::byte* staging);

  FileSet& files_;
  ReadStats stats_;  // before views_, which adds to it
  ViewReader views_;
};

}  // namespace reshard
