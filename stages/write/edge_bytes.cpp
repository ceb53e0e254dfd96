#include "stages/write/edge_bytes.hpp"

#include <algorithm>
#include <iterator>

namespace reshard {

std::span<FileSpan const> EdgeBytes::pages_of(CellRange cells) const {
  auto const behind = std::ranges::partition_point(
      parts_, [&](KeptPages const& part) { return part.cells.begin <= cells.begin; });
  if (behind == parts_.begin() || std::prev(behind)->cells.end <= cells.begin) return {};
  return std::prev(behind)->pages;
}

std::vector<Extent> EdgeBytes::keep(std::span<Extent const> sorted, std::byte const* staging,
                                    CellRange cells) {
  std::span<FileSpan const> const pages = pages_of(cells);
  std::vector<Extent> now;
  for (Extent rest : sorted) {
    auto page = std::ranges::partition_point(pages, [&](FileSpan const& p) {
      return p.file < rest.file || (p.file == rest.file && p.end <= rest.offset_bytes);
    });
    auto const cut = [&rest](std::uint64_t bytes) {
      Extent const front{rest.file, rest.offset_bytes, bytes, rest.at};
      rest = {rest.file, rest.offset_bytes + bytes, rest.bytes - bytes, rest.at + bytes};
      return front;
    };
    for (; page != pages.end() && page->file == rest.file &&
           page->begin < rest.offset_bytes + rest.bytes;
         ++page) {
      if (page->begin > rest.offset_bytes) now.push_back(cut(page->begin - rest.offset_bytes));
      Extent const kept = cut(std::min(rest.bytes, page->end - rest.offset_bytes));
      auto const* const bytes = reinterpret_cast<char const*>(staging + kept.at);
      held_.push_back({kept.file, {kept.offset_bytes, std::string(bytes, kept.bytes)}});
    }
    if (rest.bytes > 0) now.push_back(rest);
  }
  return now;
}

std::vector<FileSegment> EdgeBytes::of_file(std::uint32_t file) const {
  std::vector<FileSegment> segments;
  for (HeldBytes const& one : held_)
    if (one.file == file) segments.push_back(one.segment);
  return segments;
}

std::vector<HeldBytes> EdgeBytes::take_new() {
  std::vector<HeldBytes> fresh(held_.begin() + static_cast<std::ptrdiff_t>(taken_), held_.end());
  taken_ = held_.size();
  return fresh;
}

}  // namespace reshard
