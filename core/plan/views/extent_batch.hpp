#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <tuple>
#include <vector>

#include "core/plan/cells/round.hpp"

namespace reshard {

/// One request to the file system: consecutive bytes of one file, from or to several places of the
/// staging memory.
struct ExtentBatch {
  struct Part {
    std::uint64_t at = 0;
    std::uint64_t bytes = 0;
    friend bool operator==(Part const&, Part const&) = default;
  };
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;
  std::vector<Part> parts;
};

/// The treatment of the last, incomplete page of a run of neighbours.
enum class TailPage {
  joined,  ///< part of the request before it
  apart,   ///< a request of its own: the next round may write the rest of that page, so it should
           ///< stay in the page cache
};

struct BatchRules {
  std::uint64_t most_bytes = std::uint64_t{8} << 20;  ///< of one request; at least two pages
  TailPage tail = TailPage::joined;
};

constexpr std::uint64_t page_bytes = 4096;

/// The non-empty extents, sorted by file and offset.
inline std::vector<Extent> by_place(std::span<Extent const> extents) {
  std::vector<Extent> sorted;
  sorted.reserve(extents.size());
  std::copy_if(extents.begin(), extents.end(), std::back_inserter(sorted),
               [](Extent const& e) { return e.bytes != 0; });
  auto const place = [](Extent const& e) { return std::tuple(e.file, e.offset_bytes, e.at); };
  if (!std::is_sorted(sorted.begin(), sorted.end(),
                      [&](auto const& a, auto const& b) { return place(a) < place(b); }))
    std::sort(sorted.begin(), sorted.end(),
              [&](auto const& a, auto const& b) { return place(a) < place(b); });
  return sorted;
}

/// The end of the request that begins at `offset_bytes` of a run ending at `end_bytes`: a page
/// boundary, or the end of the run.
inline std::uint64_t batch_end(std::uint64_t offset_bytes, std::uint64_t end_bytes,
                               BatchRules const& rules) {
  std::uint64_t const reach = (offset_bytes + rules.most_bytes) / page_bytes * page_bytes;
  if (reach < end_bytes) return reach;
  std::uint64_t const last_page = end_bytes / page_bytes * page_bytes;
  return rules.tail == TailPage::apart && last_page > offset_bytes ? last_page : end_bytes;
}

/// Cuts the run of file neighbours `run` into requests and appends them.
inline void append_batches(std::span<Extent const> run, BatchRules const& rules,
                           std::vector<ExtentBatch>& batches) {
  std::uint64_t const run_end = run.back().offset_bytes + run.back().bytes;
  std::uint64_t limit = run.front().offset_bytes;
  for (Extent const& extent : run) {
    for (std::uint64_t done = 0; done < extent.bytes;) {
      std::uint64_t const offset = extent.offset_bytes + done;
      if (offset == limit) {
        limit = batch_end(offset, run_end, rules);
        batches.push_back({.file = extent.file, .offset_bytes = offset, .bytes = 0, .parts = {}});
      }
      ExtentBatch& batch = batches.back();
      std::uint64_t const bytes = std::min(extent.bytes - done, limit - offset);
      std::uint64_t const at = extent.at + done;
      if (!batch.parts.empty() && batch.parts.back().at + batch.parts.back().bytes == at)
        batch.parts.back().bytes += bytes;
      else
        batch.parts.push_back({at, bytes});
      batch.bytes += bytes;
      done += bytes;
    }
  }
}

/// The requests that move these extents. Neighbours in a file share a request, and also a part if
/// they are neighbours in staging as well.
///
///   extents {file 0, [0, 4 KiB), at 0} and {file 0, [4 KiB, 6 KiB), at 64 KiB}: one request for
///   [0, 6 KiB) with two parts
///
/// Pre: `sorted` comes from by_place().
inline std::vector<ExtentBatch> batches_of(std::span<Extent const> sorted,
                                           BatchRules const& rules) {
  std::vector<ExtentBatch> batches;
  for (std::size_t begin = 0; begin < sorted.size();) {
    std::size_t end = begin + 1;
    while (end < sorted.size() && sorted[end].file == sorted[begin].file &&
           sorted[end].offset_bytes == sorted[end - 1].offset_bytes + sorted[end - 1].bytes)
      ++end;
    append_batches(sorted.subspan(begin, end - begin), rules, batches);
    begin = end;
  }
  return batches;
}

}  // namespace reshard
