#pragma once

#include <vector>

#include "core/plan/plan.hpp"

namespace reshard::test {

/// All regions of a plan, cell by cell.
inline std::vector<Region> regions_of(Plan const& plan) {
  std::vector<Region> all;
  for (Cell const& cell : plan.cells)
    for (Region const& region : plan.regions_of(cell)) all.push_back(region);
  return all;
}

}  // namespace reshard::test
