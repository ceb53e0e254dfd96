#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace reshard {

/// The range [begin, end). Pre: begin <= end.
template <class T>
struct HalfOpen {
  T begin{};
  T end{};
  T size() const { return end - begin; }
  bool empty() const { return begin == end; }
  friend bool operator==(HalfOpen const&, HalfOpen const&) = default;
};
/// A range of bytes of a file or of memory.
using ByteRange = HalfOpen<std::uint64_t>;
/// [begin, begin + bytes).
constexpr ByteRange range_at(std::uint64_t begin, std::uint64_t bytes) {
  return {begin, begin + bytes};
}

/// Sorts ranges and joins those that overlap, touch or have at most `gap` between them; empty ones
/// are removed. Ranges with a member `file` are joined within each file.
template <class Range>
std::vector<Range> united(std::vector<Range> ranges, decltype(Range{}.end) gap = {}) {
  auto const same_file = [](Range const& a, Range const& b) {
    if constexpr (requires { a.file; })
      return a.file == b.file;
    else
      return true;
  };
  std::erase_if(ranges, [](Range const& range) { return range.begin == range.end; });
  std::sort(ranges.begin(), ranges.end(), [&](Range const& a, Range const& b) {
    if constexpr (requires { a.file; })
      if (a.file != b.file) return a.file < b.file;
    return a.begin < b.begin;
  });
  std::vector<Range> result;
  for (Range const& range : ranges) {
    if (!result.empty() && same_file(result.back(), range) &&
        range.begin <= result.back().end + gap)
      result.back().end = std::max(result.back().end, range.end);
    else
      result.push_back(range);
  }
  return result;
}

/// `ranges` minus `taken`. Pre: both are united.
template <class T>
std::vector<HalfOpen<T>> without(std::vector<HalfOpen<T>> const& ranges,
                                 std::vector<HalfOpen<T>> const& taken) {
  std::vector<HalfOpen<T>> result;
  std::size_t t = 0;
  for (HalfOpen<T> const& range : ranges) {
    T at = range.begin;
    while (t < taken.size() && taken[t].end <= at) ++t;
    for (std::size_t i = t; i < taken.size() && taken[i].begin < range.end; ++i) {
      if (taken[i].begin > at) result.push_back({at, taken[i].begin});
      at = std::min(range.end, taken[i].end);
    }
    if (at < range.end) result.push_back({at, range.end});
  }
  return result;
}

}  // namespace reshard
