#include "core/plan/schedule.hpp"

#include <gtest/gtest.h>

namespace reshard {
namespace {

/// Cells that move nothing, each told by its source bytes.
Plan plan_of(std::uint32_t cells) {
  Plan plan;
  for (std::uint32_t i = 0; i < cells; ++i) {
    Cell cell;
    cell.source_bytes = i;
    cell.staging_bytes = 10;
    cell.target_bytes = 10;
    plan.add(cell, {});
  }
  plan.target_bytes = 10 * cells;
  return plan;
}

TEST(DropCells, WhatIsLeftKeepsItsNumbers) {
  Plan plan = plan_of(10);
  std::vector<CellRange> const done{{0, 2}, {4, 5}, {8, 10}};
  std::vector<std::uint32_t> const kept = drop_cells(plan, done);
  EXPECT_EQ(kept, (std::vector<std::uint32_t>{2, 3, 5, 6, 7}));
  ASSERT_EQ(plan.cells.size(), kept.size());
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(plan.cells[i].source_bytes, kept[i]);
  EXPECT_EQ(plan.target_bytes, 100U);
}

TEST(DropCells, AllOrNothing) {
  Plan all = plan_of(3);
  std::vector<CellRange> const every{{0, 3}};
  EXPECT_TRUE(drop_cells(all, every).empty());
  EXPECT_TRUE(all.cells.empty());
  Plan none = plan_of(3);
  EXPECT_EQ(drop_cells(none, {}), (std::vector<std::uint32_t>{0, 1, 2}));
}

TEST(DirectRounds, TheirCellsFollowEachOther) {
  Plan const plan = plan_of(10);
  std::size_t next = 0;
  for (int rank = 0; rank < 3; ++rank) {
    auto const rounds = direct_rounds(plan, cells_of_rank(plan, rank, 3), 25);
    while (auto const round = rounds()) {
      EXPECT_EQ(round->cells.begin, next);
      EXPECT_LE(round->cells.end - round->cells.begin, 2U);
      next = round->cells.end;
    }
  }
  EXPECT_EQ(next, 10U);
}

}  // namespace
}  // namespace reshard
