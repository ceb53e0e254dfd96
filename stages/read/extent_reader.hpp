#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/base/threads/workers.hpp"
#include "core/io/file_set.hpp"
#include "core/plan/views/extent_batch.hpp"
#include "stages/read/view_reader.hpp"

namespace reshard {

/// Reads the extents of rounds into staging memory, neighbours in one vectored request. Never maps
/// a file: a source that is cut short under us is an Error, not a signal. Extents of views are
/// computed (ViewReader). Used by one thread; with workers, several requests are under way at a
/// time.
class ExtentReader {
 public:
  /// `files` and `views` outlive the reader. View v has the file number files.size() + v. The
  /// observer is called for one request at a time.
  explicit ExtentReader(FileSet& files, std::span<SourceView const> views = {},
                        StoredBytesObserver observer = {}, std::size_t threads = 1);
  ExtentReader(ExtentReader const&) = delete;
  ExtentReader& operator=(ExtentReader const&) = delete;

  /// Fills staging[extent.at, +extent.bytes) for every extent. The extents do not overlap in
  /// staging.
  void read(std::span<Extent const> extents, std::byte* staging);

  ReadStats stats() const;

 private:
  /// The state of one thread.
  struct Lane {
    ReadStats stats;
    std::unique_ptr<ViewReader> views;
  };
  /// Extents of one view, so that consecutive ones are read ahead once for any number of threads;
  /// or a part of one that is merged.
  using Group = std::vector<Extent>;
  std::vector<Group> groups_of(std::span<Extent const> computed) const;
  std::size_t view_of(Group const& group) const { return group.front().file - files_.size(); }
  static bool is_cut(SourceView const& view);
  bool is_cut(Group const& group) const;
  Lane& lane_of(std::span<Group const> groups, std::size_t group, std::size_t worker);
  void read_batch(ExtentBatch const& batch, std::byte* staging, Lane& lane);
  void compute(Group const& group, std::byte* staging, Lane& lane);

  FileSet& files_;
  std::span<SourceView const> views_;
  BatchRules rules_;
  std::mutex observing_;
  std::vector<Lane> lanes_;      ///< one per worker
  std::array<Lane, 2> carried_;  ///< the first: of the last view of the round before; the second:
                                 ///< of this round
  std::size_t carried_view_;     ///< the number of views: none
  ReadStats tile_stats_;
  FactorTiles tiles_;
  KeptScales scales_;
  Workers workers_;  // last: it uses what is above
};

}  // namespace reshard
