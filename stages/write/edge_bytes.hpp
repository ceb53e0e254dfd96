#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/plan/compile.hpp"
#include "core/plan/round.hpp"
#include "stages/write/journal.hpp"

namespace reshard {

/// The bytes of this rank in pages of target files that another rank writes, too: kept back while
/// rounds are written, because the caches of two nodes must not hold the same page changed. The
/// journal has them, and when all ranks have ended one rank writes them. Used by one thread at a
/// time.
class EdgeBytes {
 public:
  /// `pages` are sorted and do not overlap.
  explicit EdgeBytes(std::vector<FileSpan> pages) : pages_(std::move(pages)) {}

  /// Keeps back what lies in the pages and gives what may be written now. `sorted`: by file and
  /// offset.
  std::vector<Extent> keep(std::span<Extent const> sorted, std::byte const* staging);
  /// What was kept since this was last asked.
  std::vector<HeldBytes> take_new();
  std::vector<HeldBytes> const& all() const { return held_; }
  /// Whether anything of a file is kept back.
  bool holds(std::uint32_t file) const;

 private:
  std::vector<FileSpan> pages_;
  std::vector<HeldBytes> held_;
  std::size_t taken_ = 0;
};

}  // namespace reshard
