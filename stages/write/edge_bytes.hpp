#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/plan/cells/round.hpp"
#include "core/plan/compile.hpp"
#include "stages/write/journal.hpp"

namespace reshard {

/// The pages that are kept back while these cells are written: sorted, without overlap.
struct KeptPages {
  CellRange cells;
  std::vector<FileSpan> pages;
};

/// The bytes of this rank in pages of target files that another rank writes, too: kept back while
/// rounds are written, because the caches of two nodes must not both contain the same modified
/// page. The journal contains them, and when all ranks have ended one rank writes them. Used by one
/// thread at a time.
class EdgeBytes {
 public:
  /// Keeps back `pages` of all cells; they are sorted and do not overlap.
  explicit EdgeBytes(std::vector<FileSpan> pages) : parts_{{{0, SIZE_MAX}, std::move(pages)}} {}
  /// Keeps back pages of the cells of each part, in their order, and none of other cells.
  static EdgeBytes of_parts(std::vector<KeptPages> parts) { return EdgeBytes(std::move(parts)); }

  /// Keeps back the bytes in the pages and returns the extents to write now. `sorted`: by file and
  /// offset, written by `cells`, which are of one part.
  std::vector<Extent> keep(std::span<Extent const> sorted, std::byte const* staging,
                           CellRange cells = {});
  /// The bytes kept since the last call.
  std::vector<HeldBytes> take_new();
  std::vector<HeldBytes> const& all() const { return held_; }
  /// The bytes kept back of a file.
  std::vector<FileSegment> of_file(std::uint32_t file) const;

 private:
  explicit EdgeBytes(std::vector<KeptPages> parts) : parts_(std::move(parts)) {}
  std::span<FileSpan const> pages_of(CellRange cells) const;

  std::vector<KeptPages> parts_;
  std::vector<HeldBytes> held_;
  std::size_t taken_ = 0;
};

}  // namespace reshard
