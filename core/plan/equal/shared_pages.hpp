#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/plan/compile.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// The granularity at which target files are considered.
struct PageLimits {
  std::uint64_t page_bytes = 4096;
  std::size_t most_spans = 4096;  ///< of one rank
  std::size_t most_pages = 1024;  ///< of one rank
};

/// The pages of the target files that these cells write, sorted. If they are more ranges than the
/// limit, gaps between them are included, the smallest first.
std::vector<FileSpan> written_pages(Plan const& plan, CellRange cells, PageLimits const& limits);

/// The pages of a rank that a lower rank writes, too, sorted, the first `most_pages` of them.
/// `written` are the written_pages() of all ranks. These are written after the lower ranks have
/// written: caches of two nodes with the same page may each write all of it.
std::vector<FileSpan> pages_of_lower_ranks(std::span<std::vector<FileSpan> const> written,
                                           std::size_t rank, PageLimits const& limits);

/// The pages_of_lower_ranks() of each of several writers, found in one pass over all. nullopt if
/// they take more than `most_bytes` in total.
std::optional<std::vector<std::vector<FileSpan>>> pages_of_lower_writers(
    std::span<std::vector<FileSpan> const> written, std::uint64_t most_bytes);

}  // namespace reshard
