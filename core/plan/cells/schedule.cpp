#include "core/plan/cells/schedule.hpp"

#include <algorithm>
#include <utility>

#include "core/base/tables/integers.hpp"
#include "core/plan/cells/cell_cuts.hpp"
#include "core/plan/cells/place_digests.hpp"
#include "core/plan/clones.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/equal/unread.hpp"

namespace reshard {
namespace {

/// A stop of the job waits for the end of a round.
constexpr std::uint64_t most_unread_bytes = std::uint64_t{1} << 30;
/// The most cells of a round: the lists of a round need some hundred bytes per cell, in addition to
/// its payload.
constexpr std::size_t most_round_cells = std::size_t{1} << 14;

/// The number of bytes of each digest in an unread cell.
void append_recorded(Plan const& plan, Cell const& cell, std::vector<DigestShare>& recorded) {
  for (DigestRegion const& region : plan.digests_of(cell))
    if (region.to != DigestId::none)
      recorded.push_back({region.to, 0, bytes_of(region, plan.dims_of(region))});
}

}  // namespace

RankCells::RankCells(Plan const& plan, int ranks) {
  cuts_ = cut_cells(plan, {0, plan.cells.size()}, static_cast<std::size_t>(ranks));
}

CellRange cells_of_rank(Plan const& plan, int rank, int ranks) {
  return RankCells(plan, ranks).of(rank);
}

std::size_t round_end(Plan const& plan, CellRange cells, std::uint64_t staging_bytes) {
  std::uint64_t staging = 0;
  std::uint64_t unread = 0;
  std::size_t at = cells.begin;
  for (; at < cells.end; ++at) {
    Cell const& cell = plan.cells[at];
    if (at != cells.begin && staging + cell.staging_bytes > staging_bytes) break;
    if (unread > most_unread_bytes || at - cells.begin == most_round_cells) break;
    staging += cell.staging_bytes;
    if (cell.staging_bytes == 0) unread += cell.target_bytes;
  }
  return at;
}

std::function<std::optional<RoundWork>()> direct_rounds(Plan const& plan, CellRange cells,
                                                        std::uint64_t staging_bytes) {
  return [&plan, cells, staging_bytes]() mutable -> std::optional<RoundWork> {
    if (cells.begin == cells.end) return std::nullopt;
    std::size_t end = round_end(plan, cells, staging_bytes);
    for (;;) {
      std::vector<Region> regions;
      std::vector<Region> unread;
      std::vector<DigestRegion> digests;
      std::vector<DigestShare> recorded;
      for (std::size_t i = cells.begin; i < end; ++i) {
        auto const members = plan.regions_of(plan.cells[i]);
        if (is_unread(plan, plan.cells[i])) {
          unread.insert(unread.end(), members.begin(), members.end());
          append_recorded(plan, plan.cells[i], recorded);
          continue;
        }
        regions.insert(regions.end(), members.begin(), members.end());
        auto const own_digests = plan.digests_of(plan.cells[i]);
        digests.insert(digests.end(), own_digests.begin(), own_digests.end());
      }
      RoundWork round = compile_round(regions, plan.dims, plan.alignment);
      // Gaps that are read along can make a round larger than its cells: then it takes fewer of
      // them.
      if (round.staging_bytes <= 2 * staging_bytes || end - cells.begin == 1) {
        round.cells = {cells.begin, end};
        cells.begin = end;
        if (plan.clones.block_bytes > 0)
          round.clones =
              whole_blocks(straight_stretches(regions, plan.dims, plan.clones), plan.clones);
        round.unread = straight_stretches(unread, plan.dims, plan.clones);
        round.recorded = std::move(recorded);
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
    plan.cells.set(left.size(), plan.cells.record(i));
    left.push_back(narrow<std::uint32_t>(i));
  }
  plan.cells.truncate(left.size());
  return left;
}

std::vector<int> balanced_readers(Plan const& plan, std::size_t files, int ranks) {
  std::vector<std::uint64_t> bytes(files, 0);
  std::uint64_t total = 0;
  for (Cell const& cell : plan.cells)
    for (Region const& region : plan.regions_of(cell)) {
      std::uint64_t const n = bytes_of(region, plan.dims_of(region));
      bytes[region.src_file] += n;
      total += n;
    }
  std::vector<int> readers(files, 0);
  std::uint64_t before = 0;
  for (std::size_t f = 0; f < files; ++f) {
    readers[f] = total == 0
                     ? 0
                     : std::min(ranks - 1, static_cast<int>(static_cast<double>(before) /
                                                            static_cast<double>(total) * ranks));
    before += bytes[f];
  }
  return readers;
}

}  // namespace reshard
