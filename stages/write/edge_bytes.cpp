#include "stages/write/edge_bytes.hpp"

#include <algorithm>

namespace reshard {

std::vector<Extent> EdgeBytes::keep(std::span<Extent const> sorted, std::byte const* staging) {
  std::vector<Extent> now;
  for (Extent rest : sorted) {
    auto page = std::ranges::partition_point(pages_, [&](FileSpan const& p) {
      return p.file < rest.file || (p.file == rest.file && p.end <= rest.offset_bytes);
    });
    auto const cut = [&rest](std::uint64_t bytes) {
      Extent const front{rest.file, rest.offset_bytes, bytes, rest.at};
      rest = {rest.file, rest.offset_bytes + bytes, rest.bytes - bytes, rest.at + bytes};
      return front;
    };
    for (; page != pages_.end() && page->file == rest.file &&
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

bool EdgeBytes::holds(std::uint32_t file) const {
  return std::ranges::find(held_, file, &HeldBytes::file) != held_.end();
}

std::vector<HeldBytes> EdgeBytes::take_new() {
  std::vector<HeldBytes> fresh(held_.begin() + static_cast<std::ptrdiff_t>(taken_), held_.end());
  taken_ = held_.size();
  return fresh;
}

}  // namespace reshard
