#include "pipeline/run/path/round_terms.hpp"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "core/plan/cells/cell_cuts.hpp"
#include "core/plan/cells/round_sizes.hpp"
#include "pipeline/run/checks/same_files.hpp"
#include "pipeline/run/path/rank_loads.hpp"
#include "tests/pipeline/small_job.hpp"

namespace reshard {
namespace {

/// Of a rank of several; rounds are as small as the plan lets them be.
RoundTerms terms_of(test::SmallJob const& job, int rank, int ranks, bool exchanging) {
  return {.plan = job.plan.plan,
          .views = job.plan.source.views,
          .source_files = job.source.value.files.size(),
          .memory_bytes = 1 << 20,
          .round_memory_bytes = 1 << 20,
          .most_staging_bytes = 4096,
          .exchanging = exchanging,
          .rank = rank,
          .ranks = ranks};
}

std::uint64_t rounds_given(RoundTerms const& terms) {
  RoundSource const next = rounds_of(terms);
  std::uint64_t count = 0;
  while (next()) ++count;
  return count;
}

TEST(RoundTerms, RanksGiveAsManyRoundsTogetherAsAreCounted) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  for (int const ranks : {1, 2, 3, 7}) {
    std::uint64_t given = 0;
    for (int rank = 0; rank < ranks; ++rank)
      given += rounds_given(terms_of(job, rank, ranks, false));
    EXPECT_EQ(given, count_rounds(terms_of(job, 0, ranks, false))) << ranks;
    EXPECT_GE(given, 2U);
  }
}

TEST(RoundTerms, WhereRanksExchangeEachTakesPartInAllRounds) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  std::uint64_t const count = count_rounds(terms_of(job, 0, 3, true));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(count_rounds(terms_of(job, rank, 3, true)), count);
    EXPECT_EQ(rounds_given(terms_of(job, rank, 3, true)), count);
  }
}

/// Gives a part to the first who asks.
class FirstAsked : public PartClaims {
 public:
  bool claim(std::size_t part) override { return claimed_.insert(part).second; }
  std::vector<std::size_t> claimed() override { return {claimed_.begin(), claimed_.end()}; }

 private:
  std::set<std::size_t> claimed_;
};

TEST(RoundTerms, WhereCellsAreHandedOutTheRoundsAreThoseOfAllParts) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  for (int const ranks : {2, 3}) {
    RoundTerms terms = terms_of(job, 0, ranks, false);
    terms.most_staging_bytes = 512;
    EXPECT_TRUE(parts_of(terms).are_whole());
    terms.handing_out = true;
    RankParts const parts = parts_of(terms);
    EXPECT_FALSE(parts.are_whole());
    std::set<std::size_t> ends;
    for (std::size_t part = 0; part < parts.count(); ++part) ends.insert(parts.cells(part).end);
    FirstAsked claims;
    std::vector<bool> done(job.plan.plan.cells.size());
    std::uint64_t given = 0;
    std::uint64_t of_others = 0;
    for (terms.rank = 0; terms.rank < ranks; ++terms.rank) {
      HandOut hand_out(job.plan.plan, parts, terms.rank, &claims);
      PartRounds rounds(terms, parts, hand_out);
      EXPECT_TRUE(rounds.is_between_parts());
      for (auto round = rounds.next(); round; round = rounds.next(), ++given) {
        EXPECT_EQ(rounds.is_between_parts(), ends.contains(round->cells.end)) << given;
        for (std::size_t cell = round->cells.begin; cell < round->cells.end; ++cell) {
          EXPECT_FALSE(done[cell]) << cell;
          done[cell] = true;
        }
      }
      of_others += hand_out.bytes_of_others();
    }
    EXPECT_EQ(std::ranges::count(done, false), 0);
    EXPECT_EQ(given, count_rounds(terms));
    EXPECT_GT(of_others, 0U) << "rank 0 asks first for all but the others' first parts";
    terms.exchanging = true;
    EXPECT_TRUE(parts_of(terms).are_whole());
  }
}

TEST(RoundTerms, TheArenaHoldsAnyPart) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  RoundTerms terms = terms_of(job, 0, 2, false);
  terms.most_staging_bytes = 512;
  terms.memory_bytes = std::uint64_t{64} << 30;
  EXPECT_EQ(arena_bytes_of_parts(terms), 0U);
  terms.handing_out = true;
  RankParts const parts = parts_of(terms);
  for (std::size_t part = 0; part < parts.count(); ++part)
    EXPECT_GE(arena_bytes(terms), arena_bytes(terms, parts.cells(part)));
}

TEST(RoundTerms, CellsOfTheRanksAreTheTarget) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  std::uint64_t bytes = 0;
  std::size_t end = 0;
  for (int rank = 0; rank < 3; ++rank) {
    CellRange const cells = own_cells(terms_of(job, rank, 3, false));
    EXPECT_EQ(cells.begin, end);
    end = cells.end;
    bytes += target_bytes_of(job.plan.plan, cells);
  }
  EXPECT_EQ(end, job.plan.plan.cells.size());
  EXPECT_EQ(bytes, job.plan.plan.target_bytes);
}

TEST(RankLoads, AreThoseOfEveryRank) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  for (int const ranks : {1, 2, 3, 7}) {
    RankLoads const loads = rank_loads(terms_of(job, 0, ranks, false));
    std::vector<std::uint64_t> written;
    std::vector<std::uint64_t> rounds;
    std::vector<std::uint64_t> staging;
    for (int rank = 0; rank < ranks; ++rank) {
      RoundTerms const terms = terms_of(job, rank, ranks, false);
      written.push_back(target_bytes_of(job.plan.plan, own_cells(terms)));
      rounds.push_back(rounds_given(terms));
      staging.push_back(arena_bytes(terms));
    }
    EXPECT_EQ(loads.written_bytes.least, std::ranges::min(written));
    EXPECT_EQ(loads.written_bytes.most, std::ranges::max(written));
    EXPECT_EQ(loads.written_bytes.mean,
              job.plan.plan.target_bytes / static_cast<std::uint64_t>(ranks));
    EXPECT_EQ(loads.rounds.least, std::ranges::min(rounds));
    EXPECT_EQ(loads.rounds.most, std::ranges::max(rounds));
    EXPECT_EQ(loads.staging_bytes.most, std::ranges::max(staging));
    EXPECT_EQ(loads.read_bytes.mean,
              job.plan.plan.source_bytes / static_cast<std::uint64_t>(ranks));
    EXPECT_LE(loads.read_bytes.least, loads.read_bytes.mean);
    EXPECT_GE(loads.read_bytes.most, loads.read_bytes.mean);
  }
}

TEST(RankLoads, OfRanksThatExchangeAreThoseOfTheirReaders) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  RoundTerms const terms = terms_of(job, 0, 3, true);
  RankLoads const loads = rank_loads(terms);
  EXPECT_EQ(loads.rounds.least, count_rounds(terms));
  EXPECT_EQ(loads.rounds.most, count_rounds(terms));
  // Shares of a cell are rounded down: a byte for each file of it.
  EXPECT_LE(loads.read_bytes.mean * 3, job.plan.plan.source_bytes);
  EXPECT_GT(loads.read_bytes.mean * 3 + 3 + 3 * job.plan.plan.cells.size(),
            job.plan.plan.source_bytes);
  EXPECT_EQ(loads.staging_bytes.most, arena_bytes(terms));
}

TEST(RoundTerms, TheArenaIsNoLargerThanTheJobSays) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  for (bool const exchanging : {false, true}) {
    RoundTerms terms = terms_of(job, 0, 2, exchanging);
    terms.memory_bytes = least_staging_bytes;
    EXPECT_LE(arena_bytes(terms), least_staging_bytes);
    EXPECT_GT(arena_bytes(terms), 0U);
  }
  // A job that has little to do takes little of much memory.
  RoundTerms terms = terms_of(job, 0, 1, false);
  terms.memory_bytes = std::uint64_t{64} << 30;
  EXPECT_LT(arena_bytes(terms), std::uint64_t{1} << 30);
}

TEST(RoundTerms, ComputedValuesTakeMoreOfADevice) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  RoundTerms on_host = terms_of(job, 0, 1, false);
  RoundTerms on_device = on_host;
  on_device.on_device = true;
  EXPECT_GE(count_rounds(on_device), count_rounds(on_host));
  EXPECT_GE(arena_bytes(on_device), arena_bytes(on_host));
}

TEST(FilesToRead, AreThoseOfTheRanksRounds) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  EXPECT_EQ(files_to_read(terms_of(job, 0, 1, false)), (std::set<std::uint32_t>{0}));
  // The one file has one reader.
  std::size_t readers = 0;
  for (int rank = 0; rank < 3; ++rank)
    readers += files_to_read(terms_of(job, rank, 3, true)).size();
  EXPECT_EQ(readers, 1U);
}

TEST(FilesToRead, AViewStandsForWhatItIsComputedFrom) {
  test::SmallJob job = test::small_job(test::small_limits(false));
  FilePlaces& places = job.plan.plan.places;
  for (std::size_t i = 0; i < places.size(); ++i) places.set(i, {places[i].offset_bytes, 1});
  SourceView view;
  view.stored.file = 4;
  view.scale = StoredPlace{};
  view.scale->file = 6;
  view.zero_points = StoredPlace{};
  view.zero_points->file = 9;
  job.plan.source.views = {view};
  EXPECT_EQ(files_to_read(terms_of(job, 0, 1, false)), (std::set<std::uint32_t>{4, 6, 9}));
}

TEST(SentBytes, AreThoseThatAnotherRankReads) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  RoundTerms const terms = terms_of(job, 0, 3, true);
  SentBytes const sent = sent_bytes(terms, {"x", "y", "z"});
  EXPECT_GT(sent.in_all, 0U);
  EXPECT_EQ(sent.between_hosts, sent.in_all);
  std::uint64_t inside = 0;  // two ranks on a host, each pair once
  for (std::vector<std::string> const& hosts :
       {std::vector<std::string>{"x", "x", "y"}, {"x", "y", "x"}, {"y", "x", "x"}})
    inside += sent.in_all - sent_bytes(terms, hosts).between_hosts;
  EXPECT_EQ(inside, sent.in_all);
  EXPECT_EQ(sent_bytes(terms, {"x", "x", "x"}).between_hosts, 0U);
  EXPECT_EQ(sent_bytes(terms, {}).in_all, sent.in_all);
  EXPECT_EQ(sent_bytes(terms_of(job, 0, 1, true), {"x"}).in_all, 0U);
  EXPECT_EQ(sent_bytes(terms_of(job, 0, 3, false), {"x", "y", "y"}).in_all, 0U);
}

}  // namespace
}  // namespace reshard
