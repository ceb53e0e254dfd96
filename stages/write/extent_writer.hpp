#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "core/base/workers.hpp"
#include "core/io/file_set.hpp"
#include "core/plan/extent_batch.hpp"
#include "stages/write/edge_bytes.hpp"
#include "stages/write/extent_sink.hpp"

namespace reshard {

/// Sees the bytes of every extent before they are written, in parts, in any order. Called from
/// several threads at a time where a writer has workers.
using WriteObserver = std::function<void(std::uint32_t file, std::uint64_t offset_bytes,
                                         std::span<std::byte const> bytes)>;

/// Writes the extents of rounds from staging memory into files that exist at full size. Neighbours
/// are joined into large vectored writes. Nothing is synced: the caller syncs the files when all is
/// written. Used by one thread; with workers, several requests are under way at a time. Bytes in
/// pages that another rank writes, too, are kept back where there is something that keeps them.
class ExtentWriter : public ExtentSink {
 public:
  /// What is given outlives the writer; an empty observer is allowed, and no `edges`.
  ExtentWriter(FileSet& files, WriteObserver const& observer, EdgeBytes* edges = nullptr,
               std::size_t threads = 1)
      : files_(files), observer_(observer), edges_(edges), workers_(threads) {}

  /// Writes staging[extent.at, +extent.bytes) for every extent. The extents do not overlap in
  /// the files.
  void write(std::span<Extent const> extents, std::byte* staging) override;

  WriteStats const& stats() const override { return stats_; }
  std::string_view mode_name() const override { return files_.io().write_mode(); }

 private:
  void show(std::span<Extent const> sorted, std::byte const* staging);
  void write_batch(ExtentBatch const& batch, std::byte* staging) const;

  FileSet& files_;
  WriteObserver const& observer_;
  EdgeBytes* edges_;
  WriteStats stats_;
  Workers workers_;
};

}  // namespace reshard
