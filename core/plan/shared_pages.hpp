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

/// Where in the target files these cells are written: whole pages, sorted. Where they would be more
/// stretches than the limit, gaps between them are taken in, the smallest first.
std::vector<FileSpan> written_pages(Plan const& plan, CellRange cells, PageLimits const& limits);

/// The pages of a rank that a lower rank writes, too, sorted, the first `most_pages` of them.
/// `written` are the written_pages() of all ranks. While the lower ranks write, these are kept
/// back: caches of two nodes that hold the same page may each write all of it.
std::vector<FileSpan> pages_of_lower_ranks(std::span<std::vector<FileSpan> const> written,
                                           std::size_t rank, PageLimits const& limits);

/// The pages that each of several writers keeps back because a lower one writes them, too: for each
/// writer what pages_of_lower_ranks() gives, found in one pass over all. Nothing where they are
/// more than `most_bytes` all together.
std::optional<std::vector<std::vector<FileSpan>>> pages_of_lower_writers(
    std::span<std::vector<FileSpan> const> written, std::uint64_t most_bytes);

}  // namespace reshard
