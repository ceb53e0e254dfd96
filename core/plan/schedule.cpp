#include "core/plan/schedule.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/integers.hpp"
#include "core/plan/clones.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/place_digests.hpp"
#include "core/plan/unread.hpp"

namespace reshard {
namespace {

/// A stop of the job waits for the end of a round.
constexpr std::uint64_t most_unread_bytes = std::uint64_t{1} << 30;

std::uint64_t weight(Cell const& cell) { return cell.target_bytes + cell.source_bytes; }

std::span<Region const> regions_of(Plan const& plan, Cell const& cell) {
  return {plan.regions.data() + cell.first_region, cell.region_count};
}

std::span<DigestRegion const> digests_of(Plan const& plan, Cell const& cell) {
  return {plan.digests.data() + cell.first_digest, cell.digest_count};
}

/// From the first to the last byte of a region in its target file.
FileSpan reach_of(Plan const& plan, Region const& region) {
  std::uint64_t end = region.dst_offset_bytes + region.run_bytes;
  for (ByteDim const& dim : plan.dims_of(region))
    end += (dim.count - 1) * static_cast<std::uint64_t>(dim.to_stride);
  return {region.to, region.dst_offset_bytes, end};
}

/// Whether two cells write between each other's bytes in some file.
bool interleaved(Plan const& plan, Cell const& a, Cell const& b) {
  std::map<std::uint32_t, FileSpan> reach;
  for (Region const& region : regions_of(plan, a)) {
    FileSpan const span = reach_of(plan, region);
    auto const known = reach.try_emplace(span.file, span).first;
    known->second.begin = std::min(known->second.begin, span.begin);
    known->second.end = std::max(known->second.end, span.end);
  }
  return std::ranges::any_of(regions_of(plan, b), [&](Region const& region) {
    FileSpan const span = reach_of(plan, region);
    auto const known = reach.find(span.file);
    return known != reach.end() && span.begin < known->second.end && span.end > known->second.begin;
  });
}

/// Where the plan's order is cut between ranks.
class CutSearch {
 public:
  CutSearch(Plan const& plan, int ranks)
      : plan_(plan), ranks_(ranks), before_(plan.cells.size() + 1, 0) {
    for (std::size_t i = 0; i < plan.cells.size(); ++i)
      before_[i + 1] = before_[i] + weight(plan.cells[i]);
  }

  /// The first cell of a rank.
  std::size_t cut_before(int rank) const {
    std::size_t const at = first_from(part(rank));
    if (is_clean(at)) return at;
    // Parts of neighbours overlap nowhere, so cuts stay in order.
    std::uint64_t const slack = part(1) / 8;
    std::size_t const low = first_from(part(rank) - std::min(slack, part(rank)));
    std::size_t const high = first_from(part(rank) + slack + 1);
    for (std::size_t step = 1; step <= std::max(at - low, high - std::min(at, high)); ++step) {
      if (at + step < high && is_clean(at + step)) return at + step;
      if (at >= low + step && is_clean(at - step)) return at - step;
    }
    return at;
  }

 private:
  /// A cell belongs to the rank in whose part of the total its first byte falls.
  std::uint64_t part(int rank) const {
    return static_cast<std::uint64_t>(static_cast<double>(before_.back()) * rank / ranks_);
  }
  std::size_t first_from(std::uint64_t bytes) const {
    auto const end = before_.end() - 1;
    return static_cast<std::size_t>(std::lower_bound(before_.begin(), end, bytes) -
                                    before_.begin());
  }
  bool is_clean(std::size_t cut) const {
    return cut == 0 || cut >= plan_.cells.size() ||
           !interleaved(plan_, plan_.cells[cut - 1], plan_.cells[cut]);
  }

  Plan const& plan_;
  int ranks_;
  std::vector<std::uint64_t> before_;  ///< weight of the cells before each
};

}  // namespace

namespace {

/// How many bytes of which digests an unread cell has.
void append_recorded(Plan const& plan, Cell const& cell, std::vector<DigestShare>& recorded) {
  for (DigestRegion const& region : digests_of(plan, cell))
    if (region.to != DigestId::none)
      recorded.push_back({region.to, 0, bytes_of(region, plan.dims_of(region))});
}

}  // namespace

RankCells::RankCells(Plan const& plan, int ranks) {
  CutSearch const search(plan, ranks);
  for (int r = 0; r < ranks; ++r) cuts_.push_back(search.cut_before(r));
  cuts_.push_back(plan.cells.size());
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
    if (unread > most_unread_bytes) break;
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
        auto const members = regions_of(plan, plan.cells[i]);
        if (is_unread(plan, plan.cells[i])) {
          unread.insert(unread.end(), members.begin(), members.end());
          append_recorded(plan, plan.cells[i], recorded);
          continue;
        }
        regions.insert(regions.end(), members.begin(), members.end());
        auto const own_digests = digests_of(plan, plan.cells[i]);
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
    readers[f] = total == 0
                     ? 0
                     : std::min(ranks - 1, static_cast<int>(static_cast<double>(before) /
                                                            static_cast<double>(total) * ranks));
    before += bytes[f];
  }
  return readers;
}

}  // namespace reshard
