#include "core/plan/cells/schedule.hpp"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "core/plan/compile.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t cell_bytes = 8192;

/// Adds a cell of a whole block, read from the place in a file and written behind what was added
/// before.
void add_cell(Plan& plan, std::uint32_t file, std::uint64_t offset, std::uint32_t to) {
  Region const region{file, to, offset, plan.target_bytes, cell_bytes, 0, 0};
  plan.add({.staging_bytes = staging_bound(std::span(&region, 1), plan.dims),
            .source_bytes = cell_bytes,
            .target_bytes = cell_bytes},
           std::span(&region, 1));
  plan.target_bytes += cell_bytes;
}

/// What the ranks do in one round.
struct TakenRound {
  std::vector<std::uint64_t> read_bytes;  ///< by rank
  std::vector<std::size_t> cells;         ///< written, by rank
};

/// Takes all rounds of all ranks, and checks what holds for any: every cell is written once, by the
/// rank whose it is, and no rank needs more memory than `staging_bytes`.
std::vector<TakenRound> take_rounds(Plan const& plan, std::vector<int> const& readers, int ranks,
                                    std::uint64_t staging_bytes) {
  std::vector<ExchangeRounds> each;
  for (int rank = 0; rank < ranks; ++rank)
    each.emplace_back(plan, readers, rank, ranks, staging_bytes);
  std::uint64_t const expected = each[0].count();
  std::vector<TakenRound> rounds;
  std::vector<int> times(plan.cells.size(), 0);
  for (;;) {
    TakenRound taken;
    for (int rank = 0; rank < ranks; ++rank) {
      auto const round = each[static_cast<std::size_t>(rank)].next();
      if (!round) continue;
      EXPECT_LE(round->staging_bytes, staging_bytes);
      std::uint64_t read = 0;
      for (Extent const& extent : round->reads) read += extent.bytes;
      taken.read_bytes.push_back(read);
      CellRange const own = cells_of_rank(plan, rank, ranks);
      taken.cells.push_back(round->cells.size());
      for (std::size_t cell = round->cells.begin; cell < round->cells.end; ++cell) {
        EXPECT_TRUE(own.begin <= cell && cell < own.end);
        ++times[cell];
      }
    }
    EXPECT_TRUE(taken.cells.empty() || taken.cells.size() == each.size());
    if (taken.cells.empty()) break;
    rounds.push_back(taken);
  }
  EXPECT_EQ(rounds.size(), expected);
  EXPECT_TRUE(std::ranges::all_of(times, [](int n) { return n == 1; }));
  return rounds;
}

/// Cells that move nothing, each told by its source bytes.
Plan plan_of(std::uint32_t cells) {
  Plan plan;
  for (std::uint32_t i = 0; i < cells; ++i) {
    CellShape cell;
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

TEST(ExchangeRounds, WritersShareTheReaderThatAllWaitFor) {
  for (int const ranks : {2, 3, 4}) {
    Plan plan;
    for (std::uint32_t i = 0; i < 240; ++i)
      add_cell(plan, 0, i * cell_bytes, i / static_cast<std::uint32_t>(240 / ranks));
    for (TakenRound const& round : take_rounds(plan, {0}, ranks, 64 * cell_bytes)) {
      auto const [least, most] = std::ranges::minmax(round.cells);
      EXPECT_GE(least, 1U) << ranks << " ranks";
      EXPECT_LE(most - least, 1U);
    }
  }
}

/// Where a round of the reader has cells of fewer writers than there are, the next ones have those
/// of the others.
TEST(ExchangeRounds, WritersTakeTurnsWhereRoundsAreSmall) {
  Plan plan;
  for (std::uint32_t i = 0; i < 240; ++i) add_cell(plan, i / 60, i * cell_bytes, i / 60);
  std::array<std::size_t, 4> written{};
  for (TakenRound const& round : take_rounds(plan, {0, 0, 0, 0}, 4, 9 * cell_bytes)) {
    for (std::size_t rank = 0; rank < 4; ++rank) written[rank] += round.cells[rank];
    auto const [least, most] = std::ranges::minmax(written);
    EXPECT_LE(most - least, 1U);
  }
}

/// Every writer needs the bytes of every reader, in the same order: tensor parallel parts of layers
/// that are read in order, say.
TEST(ExchangeRounds, ReadersAreBusyThoughAllWritersHaveThemInOneOrder) {
  for (std::uint32_t const ranks : {2U, 3U, 4U}) {
    Plan plan;
    std::uint32_t const part = 480 / ranks;
    for (std::uint32_t i = 0; i < 480; ++i)
      add_cell(plan, i % part * ranks / part, i * cell_bytes, i / part);
    std::vector<int> readers;
    for (std::uint32_t file = 0; file < ranks; ++file) readers.push_back(static_cast<int>(file));
    std::size_t idle = 0;
    auto const rounds = take_rounds(plan, readers, static_cast<int>(ranks), 64 * cell_bytes);
    for (TakenRound const& round : rounds)
      if (std::ranges::count(round.read_bytes, 0U) + std::ranges::count(round.cells, 0U) > 0)
        ++idle;
    EXPECT_LE(idle, rounds.size() / 8) << ranks << " ranks, " << rounds.size() << " rounds";
  }
}

}  // namespace
}  // namespace reshard
