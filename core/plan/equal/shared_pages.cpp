#include "core/plan/equal/shared_pages.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

namespace reshard {
namespace {

/// The number of spans that are gathered before they are united: a bound of memory.
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

/// Keeps the first `pages` pages.
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
  std::uint64_t gap_bytes = limits.page_bytes - 1;  // no complete page fits in the gap
  for (std::size_t c = cells.begin; c < cells.end; ++c) {
    for (Region const& region : plan.regions_of(plan.cells[c]))
      append_spans(region, plan.dims_of(region), RegionEnd::target, gap_bytes, spans);
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

namespace {

/// The beginning or end of a writer's range.
struct Turn {
  std::uint32_t file = 0;
  std::uint64_t at = 0;
  bool begins = false;
  std::size_t writer = 0;
};

std::vector<Turn> turns_of(std::span<std::vector<FileSpan> const> written) {
  std::vector<Turn> turns;
  for (std::size_t writer = 0; writer < written.size(); ++writer)
    for (FileSpan const& span : written[writer]) {
      turns.push_back({span.file, span.begin, true, writer});
      turns.push_back({span.file, span.end, false, writer});
    }
  std::ranges::sort(turns, {},
                    [](Turn const& turn) { return std::tie(turn.file, turn.at, turn.begins); });
  return turns;
}

void append_joined(FileSpan const& span, std::vector<FileSpan>& spans) {
  if (!spans.empty() && spans.back().file == span.file && spans.back().end == span.begin)
    spans.back().end = span.end;
  else
    spans.push_back(span);
}

}  // namespace

std::optional<std::vector<std::vector<FileSpan>>> pages_of_lower_writers(
    std::span<std::vector<FileSpan> const> written, std::uint64_t most_bytes) {
  std::vector<std::vector<FileSpan>> kept(written.size());
  std::set<std::size_t> writing;
  std::uint64_t bytes = 0;
  Turn last;
  for (Turn const& turn : turns_of(written)) {
    if (writing.size() > 1 && turn.at > last.at) {
      bytes += (writing.size() - 1) * (turn.at - last.at);
      if (bytes > most_bytes) return std::nullopt;
      for (auto writer = std::next(writing.begin()); writer != writing.end(); ++writer)
        append_joined({turn.file, last.at, turn.at}, kept[*writer]);
    }
    if (turn.begins)
      writing.insert(turn.writer);
    else
      writing.erase(turn.writer);
    last = turn;
  }
  return kept;
}

}  // namespace reshard
