#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/threads/workers.hpp"
#include "core/io/file_set.hpp"
#include "core/plan/cells/round.hpp"
#include "core/plan/views/extent_batch.hpp"
#include "stages/write/edge_bytes.hpp"
#include "stages/write/extent_sink.hpp"
#include "stages/write/unchanged_bytes.hpp"

namespace reshard {

/// Clones ranges of source files into target files. Pairs of files that refused once are not tried
/// again. Used by one thread.
class ExtentCloner {
 public:
  /// Both outlive the cloner.
  ExtentCloner(FileSet& sources, FileSet& targets) : sources_(sources), targets_(targets) {}

  /// False if refused: the bytes must be copied.
  bool clone(CloneExtent const& extent);
  /// Copies the bytes through memory.
  void copy(CloneExtent const& extent);

 private:
  FileSet& sources_;
  FileSet& targets_;
  std::vector<std::byte> buffer_;
  bool never_ = false;
  std::set<std::pair<std::uint32_t, std::uint32_t>> refused_;  ///< source file, target file
};

/// Called with the bytes of every extent before they are written, in parts, in any order; by
/// several threads at a time if a writer has workers.
using WriteObserver = std::function<void(std::uint32_t file, std::uint64_t offset_bytes,
                                         std::span<std::byte const> bytes)>;

/// Called for every unread range of a round, once the file has it. `copied`: it could not be
/// cloned.
using UnreadObserver = std::function<void(CloneExtent const& extent, bool copied)>;

/// The bytes that a writer does not write because a previous target has them.
struct UnchangedSource {
  UnchangedBytes* bytes = nullptr;  ///< nullptr: there is no previous target
  /// Called with the bytes of complete unchanged blocks instead of the WriteObserver.
  WriteObserver seen = {};
  /// Called for each of these blocks.
  std::function<void(UnchangedBlock const&)> block = {};
};

/// The files from which a writer clones, and the observer.
struct CloneSource {
  FileSet* files = nullptr;  ///< of the job's source; nullptr: no clones
  UnreadObserver unread = {};
};

/// Writes the extents of rounds from staging memory into files that exist at full size. Neighbours
/// are joined into large vectored writes. The caller syncs the files when all is written. Used by
/// one thread; with workers, several requests are under way at a time. Bytes in pages that another
/// rank writes, too, are kept back in `edges`, if given.
class ExtentWriter : public ExtentSink {
 public:
  /// All arguments must outlive the writer; the observer may be empty, `edges` nullptr. With the
  /// files of a source, the clones of rounds are made if the file system supports them; rounds with
  /// unread bytes require these files. With `unchanged`, bytes of a previous target are not
  /// written.
  ExtentWriter(FileSet& files, WriteObserver const& observer, EdgeBytes* edges = nullptr,
               std::size_t threads = 1, CloneSource source = {}, UnchangedSource unchanged = {})
      : files_(files),
        observer_(observer),
        edges_(edges),
        unread_(std::move(source.unread)),
        unchanged_(std::move(unchanged)),
        workers_(threads) {
    if (source.files != nullptr) cloner_.emplace(*source.files, files);
  }

  /// Writes staging[extent.at, +extent.bytes) for every extent. The extents do not overlap in
  /// the files.
  void write(std::span<Extent const> extents, std::byte* staging) override;
  void take(RoundWork const& round, std::byte* staging) override;

  WriteStats const& stats() const override { return stats_; }
  std::string_view mode_name() const override { return files_.io().write_mode(); }

 private:
  bool clone(CloneExtent const& extent);
  void move_unread(std::span<CloneExtent const> extents);
  void write_without(std::span<Extent const> extents, std::span<CloneExtent const> cloned,
                     std::byte* staging, CellRange cells);
  void show(std::span<Extent const> sorted, std::byte const* staging,
            WriteObserver const& observer);
  std::vector<Extent> without_unchanged(std::span<Extent const> sorted, std::byte const* staging);
  void write_batch(ExtentBatch const& batch, std::byte* staging) const;

  FileSet& files_;
  WriteObserver const& observer_;
  EdgeBytes* edges_;
  UnreadObserver unread_;
  UnchangedSource unchanged_;
  std::optional<ExtentCloner> cloner_;
  WriteStats stats_;
  Workers workers_;
};

}  // namespace reshard
