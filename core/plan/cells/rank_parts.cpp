#include "core/plan/cells/rank_parts.hpp"

#include <algorithm>

#include "core/plan/cells/cell_cuts.hpp"
#include "core/plan/cells/schedule.hpp"

namespace reshard {
namespace {

std::size_t parts_for(std::uint64_t weight, std::size_t ranks, PartLimits const& limits) {
  std::uint64_t const least = std::max<std::uint64_t>(limits.least_weight, 1);
  std::size_t const parts =
      std::min({limits.most_of_rank, limits.most_in_all / ranks, std::size_t{weight / least}});
  return parts < limits.least_of_rank ? 1 : parts;
}

}  // namespace

RankParts::RankParts(Plan const& plan, int ranks) : RankParts(plan, ranks, {.most_of_rank = 1}) {}

RankParts::RankParts(Plan const& plan, int ranks, PartLimits const& limits) {
  RankCells const cells(plan, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    CellRange const own = cells.of(rank);
    first_.push_back(weights_.size());
    std::size_t const wanted =
        ranks == 1 ? 1 : parts_for(weight_of(plan, own), static_cast<std::size_t>(ranks), limits);
    std::size_t begin = own.begin;
    for (std::size_t const cut : cut_cells(plan, own, wanted)) {
      if (cut == begin || cut == own.end || is_cut_between_bytes(plan, cut)) continue;
      add(plan, begin, cut);
      begin = cut;
    }
    add(plan, begin, own.end);
  }
  first_.push_back(weights_.size());
  begins_.push_back(plan.cells.size());
}

void RankParts::add(Plan const& plan, std::size_t begin, std::size_t end) {
  begins_.push_back(begin);
  weights_.push_back(weight_of(plan, {begin, end}));
}

int RankParts::rank(std::size_t part) const {
  return static_cast<int>(std::ranges::upper_bound(first_, part) - first_.begin()) - 1;
}

}  // namespace reshard
