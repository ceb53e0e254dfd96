#include "core/plan/schedule.hpp"

#include <algorithm>

#include "core/base/integers.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/place_digests.hpp"

namespace reshard {
namespace {

std::uint64_t weight(Cell const& cell) { return cell.target_bytes + cell.source_bytes; }

std::span<Region const> regions_of(Plan const& plan, Cell const& cell) { return {plan.regions.data() + cell.first_region, cell.region_count}; }

std::span<Region const> digests_of(Plan const& plan, Cell const& cell) { return {plan.digests.data() + cell.first_digest, cell.digest_count}; }

}  // namespace

CellRange cells_of_rank(Plan const& plan, int rank, int ranks) {
  std::uint64_t total = 0;
  for (Cell const& cell : plan.cells) total += weight(cell);
  // A cell belongs to the rank in whose part of the total its first byte falls.
  auto const part = [&](int r) { return static_cast<std::uint64_t>(static_cast<double>(total) * r / ranks); };
  CellRange range{plan.cells.size(), plan.cells.size()};
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < plan.cells.size(); ++i) {
    if (range.begin == plan.cells.size() && before >= part(rank)) range.begin = i;
    if (rank + 1 < ranks && before >= part(rank + 1)) {
      range.end = i;
      break;
    }
    before += weight(plan.cells[i]);
  }
  range.begin = std::min(range.begin, range.end);
  return range;
}

std::size_t round_end(Plan const& plan, CellRange cells, std::uint64_t staging_bytes) {
  std::uint64_t staging = 0;
  std::size_t at = cells.begin;
  for (; at < cells.end; ++at) {
    if (at != cells.begin && staging + plan.cells[at].staging_bytes > staging_bytes) break;
    staging += plan.cells[at].staging_bytes;
  }
  return at;
}

std::function<std::optional<RoundWork>()> direct_rounds(Plan const& plan, CellRange cells, std::uint64_t staging_bytes) {
  return [&plan, cells, staging_bytes]() mutable -> std::optional<RoundWork> {
    if (cells.begin == cells.end) return std::nullopt;
    std::size_t end = round_end(plan, cells, staging_bytes);
    for (;;) {
      std::vector<Region> regions;
      std::vector<Region> digests;
      for (std::size_t i = cells.begin; i < end; ++i) {
        auto const members = regions_of(plan, plan.cells[i]);
        regions.insert(regions.end(), members.begin(), members.end());
        auto const own_digests = digests_of(plan, plan.cells[i]);
        digests.insert(digests.end(), own_digests.begin(), own_digests.end());
      }
      RoundWork round = compile_round(regions, plan.dims);
      // Gaps that are read along can make a round larger than its cells: then it takes fewer of them.
      if (round.staging_bytes <= 2 * staging_bytes || end - cells.begin == 1) {
        round.cells = {cells.begin, end};
        cells.begin = end;
        place_digests(round, digests, plan.dims, plan.tensor_bytes);
        return round;
      }
      end = cells.begin + (end - cells.begin) / 2;
    }
  };
}

std::vector<std::uint32_t> drop_cells(Plan& plan, std::span<CellRange const> done) {
  std::vector<std::uint32_t> left;
  auto next = done.begin();
  for (std::size_t i = 0; i < plan.cells.size(); ++i) {
    while (next != done.end() && next->end <= i) ++next;
    if (next != done.end() && next->begin <= i) continue;
    plan.cells[left.size()] = plan.cells[i];
    left.push_back(narrow<std::uint32_t>(i));
  }
  plan.cells.resize(left.size());
  return left;
}

std::vector<int> balanced_readers(Plan const& plan, std::size_t files, int ranks) {
  std::vector<std::uint64_t> bytes(files, 0);
  std::uint64_t total = 0;
  for (Region const& region : plan.regions) {
    std::uint64_t const n = bytes_of(region, plan.dims_of(region));
    bytes[region.src_file] += n;
    total += n;
  }
  std::vector<int> readers(files, 0);
  std::uint64_t before = 0;
  for (std::size_t f = 0; f < files; ++f) {
    readers[f] = total == 0 ? 0 : std::min(ranks - 1, static_cast<int>(static_cast<double>(before) / static_cast<double>(total) * ranks));
    before += bytes[f];
  }
  return readers;
}

}  // namespace reshard
