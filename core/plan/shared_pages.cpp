#include "core/plan/shared_pages.hpp"

#include <algorithm>

namespace reshard {
namespace {

/// So many are gathered before they are united: a bound of the memory that takes.
constexpr std::size_t most_loose_spans = std::size_t{1} << 16;

void unite(std::vector<FileSpan>& spans, std::uint64_t& gap_bytes, std::size_t most) {
  spans = united(std::move(spans), gap_bytes);
  while (spans.size() > most && gap_bytes < std::uint64_t{1} << 62) {
    gap_bytes = 4 * gap_bytes + 1;
    spans = united(std::move(spans), gap_bytes);
  }
}

void append_common(FileSpan const& mine, std::span<FileSpan const> others,
                   std::vector<FileSpan>& common) {
  auto at = std::partition_point(others.begin(), others.end(), [&](FileSpan const& o) {
    return o.file < mine.file || (o.file == mine.file && o.end <= mine.begin);
  });
  for (; at != others.end() && at->file == mine.file && at->begin < mine.end; ++at)
    common.push_back({mine.file, std::max(mine.begin, at->begin), std::min(mine.end, at->end)});
}

/// The first pages, at most so many.
void keep_first(std::vector<FileSpan>& spans, std::size_t pages, std::uint64_t page_bytes) {
  std::uint64_t left = pages * page_bytes;
  for (FileSpan& span : spans) {
    span.end = std::min(span.end, span.begin + left);
    left -= span.end - span.begin;
  }
  std::erase_if(spans, [](FileSpan const& span) { return span.begin == span.end; });
}

}  // namespace

std::vector<FileSpan> written_pages(Plan const& plan, CellRange cells, PageLimits const& limits) {
  std::vector<FileSpan> spans;
  std::uint64_t gap_bytes = limits.page_bytes - 1;  // leaves no whole page between its ends
  for (std::size_t c = cells.begin; c < cells.end; ++c) {
    Cell const& cell = plan.cells[c];
    for (std::uint32_t r = cell.first_region; r < cell.first_region + cell.region_count; ++r)
      append_spans(plan.regions[r], plan.dims_of(plan.regions[r]), RegionEnd::target, gap_bytes,
                   spans);
    if (spans.size() > most_loose_spans) unite(spans, gap_bytes, most_loose_spans / 2);
  }
  for (FileSpan& span : spans) {
    span.begin = span.begin / limits.page_bytes * limits.page_bytes;
    span.end = (span.end + limits.page_bytes - 1) / limits.page_bytes * limits.page_bytes;
  }
  unite(spans, gap_bytes, limits.most_spans);
  return spans;
}

std::vector<FileSpan> pages_of_lower_ranks(std::span<std::vector<FileSpan> const> written,
                                           std::size_t rank, PageLimits const& limits) {
  std::vector<FileSpan> lower;
  for (std::vector<FileSpan> const& spans : written.first(rank))
    lower.insert(lower.end(), spans.begin(), spans.end());
  lower = united(std::move(lower), 0);
  std::vector<FileSpan> common;
  for (FileSpan const& mine : written[rank]) append_common(mine, lower, common);
  keep_first(common, limits.most_pages, limits.page_bytes);
  return common;
}

}  // namespace reshard
