// The parts of ranks cover a plan, each once, and are handed out so that no rank is idle while
// another has one that it has not begun: simulated, with ranks of different speeds.

#include "core/plan/cells/hand_out.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/plan/cells/cell_cuts.hpp"
#include "core/plan/cells/rank_parts.hpp"
#include "core/plan/cells/schedule.hpp"

namespace reshard {
namespace {

/// A cell that writes the next bytes of file 0.
void add_run(Plan& plan, std::uint64_t bytes) {
  CellShape cell;
  cell.staging_bytes = cell.source_bytes = cell.target_bytes = bytes;
  Region const region{0, 0, plan.target_bytes, plan.target_bytes, bytes, 0, 0};
  plan.add(cell, std::span(&region, 1));
  plan.target_bytes += bytes;
}

/// Cells of which each writes a column of a matrix: their bytes lie between each other's.
void add_columns(Plan& plan, std::uint64_t rows, std::uint64_t columns) {
  std::uint64_t const at = plan.target_bytes;
  for (std::uint64_t c = 0; c < columns; ++c) {
    CellShape cell;
    cell.staging_bytes = cell.source_bytes = cell.target_bytes = rows;
    Region const region{
        0, 0, at + c * rows, at + c, 1, static_cast<std::uint32_t>(plan.dims.size()), 1};
    plan.dims.push_back({rows, 1, static_cast<std::int64_t>(columns)});
    plan.add(cell, std::span(&region, 1));
    plan.target_bytes += rows;
  }
}

Plan random_plan(std::mt19937_64& random) {
  Plan plan;
  for (std::uint64_t stretches = random() % 8; stretches > 0; --stretches)
    if (random() % 4 == 0)
      add_columns(plan, 1 + random() % 50, 1 + random() % 50);
    else
      for (std::uint64_t cells = random() % 60; cells > 0; --cells)
        add_run(plan, random() % 5 == 0 ? 0 : random() % 5000);
  return plan;
}

TEST(RankParts, CoverThePlanOnceInTheOrderOfTheRanks) {
  std::mt19937_64 random(11);
  for (int turn = 0; turn < 300; ++turn) {
    Plan const plan = random_plan(random);
    int const ranks = static_cast<int>(1 + random() % 9);
    RankCells const cells(plan, ranks);
    RankParts const parts(plan, ranks, {.least_weight = random() % 20000});
    std::size_t next = 0;
    for (int r = 0; r < ranks; ++r) {
      auto const [begin, end] = parts.of_rank(r);
      ASSERT_LT(begin, end);
      EXPECT_EQ(parts.cells(begin).begin, cells.of(r).begin);
      EXPECT_EQ(parts.cells(end - 1).end, cells.of(r).end);
      EXPECT_LE(end - begin, PartLimits().most_of_rank);
      for (std::size_t part = begin; part < end; ++part) {
        EXPECT_EQ(parts.cells(part).begin, next);
        EXPECT_EQ(parts.rank(part), r);
        EXPECT_EQ(parts.weight(part), weight_of(plan, parts.cells(part)));
        EXPECT_TRUE(part == begin || !is_cut_between_bytes(plan, next)) << turn;
        next = parts.cells(part).end;
      }
    }
    EXPECT_EQ(next, plan.cells.size());
    EXPECT_EQ(parts.of_rank(ranks - 1).end, parts.count());
  }
}

Plan even_plan(std::uint64_t cells) {
  Plan plan;
  for (; cells > 0; --cells) add_run(plan, 1000);
  return plan;
}

TEST(RankParts, AreOnlyThereWhereEachIsWorthIt) {
  Plan const plan = even_plan(320);
  EXPECT_TRUE(RankParts(plan, 2).are_whole());
  EXPECT_EQ(RankParts(plan, 2).count(), 2U);
  EXPECT_EQ(RankParts(plan, 2, {.least_weight = 20'000}).count(), 32U);
  EXPECT_EQ(RankParts(plan, 2, {.least_weight = 80'000}).count(), 8U);
  EXPECT_TRUE(RankParts(plan, 2, {.least_weight = 81'000}).are_whole()) << "three are too few";
  EXPECT_TRUE(RankParts(plan, 1, {.least_weight = 1}).are_whole()) << "there is no other rank";
  EXPECT_EQ(RankParts(plan, 40, {.most_in_all = 200}).count(), 200U);
  EXPECT_TRUE(RankParts(plan, 80, {.most_in_all = 200}).are_whole());
  Plan columns;
  add_columns(columns, 1000, 320);
  EXPECT_TRUE(RankParts(columns, 2, {.least_weight = 1}).are_whole()) << "no cut is clean";
}

/// Claims that all ranks see, or that show each one only some of them.
class Claims : public PartClaims {
 public:
  explicit Claims(std::vector<int>& owners, int rank, std::uint64_t shown_of_100 = 100)
      : owners_(owners), rank_(rank), shown_of_100_(shown_of_100) {}

  bool claim(std::size_t part) override {
    ++calls;
    if (owners_[part] >= 0) return false;
    owners_[part] = rank_;
    return true;
  }
  std::vector<std::size_t> claimed() override {
    ++looks;
    std::vector<std::size_t> parts;
    for (std::size_t part = owners_.size(); part > 0; --part)
      if (owners_[part - 1] >= 0 && random_() % 100 < shown_of_100_) parts.push_back(part - 1);
    return parts;
  }
  int calls = 0;
  int looks = 0;

 private:
  std::vector<int>& owners_;
  int rank_;
  std::uint64_t shown_of_100_;
  std::mt19937_64 random_{17};
};

/// What came of a job whose ranks need so many seconds for a byte.
struct Simulated {
  std::vector<int> done_by;          ///< by part; -1: by no rank
  std::vector<double> ended;         ///< by rank
  std::vector<std::uint64_t> bytes;  ///< by rank: payload
  double longest_part = 0;           ///< seconds of a rank for a part of its
  int most_calls = 0;
  int most_looks = 0;
  std::uint64_t bytes_of_others = 0;
  std::uint64_t cells_of_others = 0;
};

Simulated simulate(Plan const& plan, RankParts const& parts, std::vector<double> const& seconds,
                   std::uint64_t shown_of_100 = 100) {
  auto const ranks = seconds.size();
  std::vector<int> owners(parts.count(), -1);
  Simulated result{std::vector<int>(parts.count(), -1), std::vector<double>(ranks, -1),
                   std::vector<std::uint64_t>(ranks, 0)};
  std::vector<Claims> claims;
  std::vector<std::unique_ptr<HandOut>> hand_outs;
  for (std::size_t r = 0; r < ranks; ++r)
    claims.emplace_back(owners, static_cast<int>(r), shown_of_100);
  for (std::size_t r = 0; r < ranks; ++r)
    hand_outs.push_back(std::make_unique<HandOut>(plan, parts, static_cast<int>(r), &claims[r]));
  std::vector<double> free_at(ranks, 0);
  for (std::size_t working = ranks; working > 0;) {
    std::size_t next = ranks;
    for (std::size_t r = 0; r < ranks; ++r)
      if (result.ended[r] < 0 && (next == ranks || free_at[r] < free_at[next])) next = r;
    auto const part = hand_outs[next]->next();
    if (!part) {
      result.ended[next] = free_at[next];
      --working;
      continue;
    }
    EXPECT_EQ(result.done_by[*part], -1) << "part " << *part << " is done twice";
    result.done_by[*part] = static_cast<int>(next);
    result.bytes[next] += target_bytes_of(plan, parts.cells(*part));
    double const takes = static_cast<double>(parts.weight(*part)) * seconds[next];
    result.longest_part = std::max(result.longest_part, takes);
    free_at[next] += takes;
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    EXPECT_EQ(hand_outs[r]->planned_bytes(), result.bytes[r]) << "rank " << r;
    result.most_calls = std::max(result.most_calls, claims[r].calls);
    result.most_looks = std::max(result.most_looks, claims[r].looks);
    result.bytes_of_others += hand_outs[r]->bytes_of_others();
    result.cells_of_others += hand_outs[r]->cells_of_others();
  }
  return result;
}

/// From the first rank that has nothing left to the end of the job.
double longest_idle(Simulated const& result) {
  auto const [first, last] = std::ranges::minmax(result.ended);
  return last - first;
}

TEST(HandOut, GivesEachPartOnceAndNoRankIdlesLongerThanAPartTakes) {
  std::mt19937_64 random(23);
  for (int turn = 0; turn < 300; ++turn) {
    Plan const plan = random_plan(random);
    auto const ranks = 1 + random() % 9;
    RankParts const parts(plan, static_cast<int>(ranks), {.least_weight = random() % 20000});
    std::vector<double> seconds;
    for (std::size_t r = 0; r < ranks; ++r)
      seconds.push_back(1 + static_cast<double>(random() % 300) / 100);
    for (std::uint64_t const shown : {100U, 50U, 0U}) {  // a listing may be old
      Simulated const result = simulate(plan, parts, seconds, shown);
      EXPECT_EQ(std::ranges::count(result.done_by, -1), 0) << turn;
      EXPECT_LE(longest_idle(result), result.longest_part + 1e-6) << turn;
      std::uint64_t others = 0;
      std::uint64_t cells = 0;
      for (std::size_t part = 0; part < parts.count(); ++part)
        if (result.done_by[part] != parts.rank(part)) {
          others += target_bytes_of(plan, parts.cells(part));
          cells += parts.cells(part).size();
        }
      EXPECT_EQ(result.bytes_of_others, others);
      EXPECT_EQ(result.cells_of_others, cells);
    }
  }
}

TEST(HandOut, ASlowRankIsHelpedAndNoneOfEqualsIs) {
  Plan const plan = even_plan(3200);
  RankParts const parts(plan, 2, {.most_of_rank = 16, .least_weight = 1000});
  ASSERT_EQ(parts.count(), 32U);
  Simulated const equals = simulate(plan, parts, {1, 1});
  EXPECT_EQ(equals.bytes_of_others, 0U);
  Simulated const slow = simulate(plan, parts, {1, 2});
  // A third of all is the slow one's share; it was given a half.
  EXPECT_NEAR(static_cast<double>(slow.bytes[1]), 3'200'000.0 / 3, 110'000);
  EXPECT_LE(std::ranges::max(slow.ended), 1.08 * 2 * 3'200'000 * 2 / 3);
  Simulated const stopped = simulate(plan, parts, {1, 1000});
  EXPECT_EQ(stopped.bytes[1], 100'000U) << "its first part is its own";
}

TEST(HandOut, AsksLittle) {
  Plan const plan = even_plan(64'000);
  RankParts const parts(plan, 64, {.most_of_rank = 16, .least_weight = 1000});
  ASSERT_EQ(parts.count(), 1024U);
  std::vector<double> seconds(64, 1);
  Simulated const equals = simulate(plan, parts, seconds);
  EXPECT_EQ(equals.most_calls, 15) << "one for each part but the first";
  EXPECT_EQ(equals.most_looks, 1);
  seconds[7] = 3;
  seconds[33] = 2;
  Simulated const slow = simulate(plan, parts, seconds);
  EXPECT_LE(slow.most_calls, 20);
  EXPECT_LE(slow.most_looks, 5);
}

TEST(HandOut, AsksForNothingWhereEachRankHasOnePart) {
  Plan const plan = even_plan(10);
  RankParts const parts(plan, 3);
  HandOut own(plan, parts, 1, nullptr);
  EXPECT_EQ(own.planned_bytes(), target_bytes_of(plan, parts.cells(1)));
  EXPECT_EQ(own.next(), std::optional<std::size_t>(1));
  EXPECT_EQ(own.next(), std::nullopt);
  EXPECT_EQ(own.next(), std::nullopt);
}

}  // namespace
}  // namespace reshard
