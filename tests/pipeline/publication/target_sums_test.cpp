#include "pipeline/publication/target_sums.hpp"

#include <gtest/gtest.h>

#include "tests/pipeline/small_job.hpp"

namespace reshard {
namespace {

std::vector<TargetLayout> layouts_of(JobPlan const& plan) {
  std::vector<TargetLayout> layouts;
  for (TargetFile const& file : plan.files)
    layouts.push_back({file.path, file.size_bytes, file.frame});
  return layouts;
}

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + 7);
  return bytes;
}

/// Writes every cell of the plan as a round of its own: the bytes are a pattern of the file.
std::vector<JournalEntry> write_cells(TargetSums& sums, JobPlan const& plan, std::size_t begin,
                                      std::size_t end) {
  std::vector<JournalEntry> entries;
  auto const file = pattern(plan.files.front().size_bytes);
  for (std::size_t i = begin; i < end; ++i) {
    for (Region const& region : plan.plan.regions_of(plan.plan.cells[i])) {
      EXPECT_TRUE(plan.plan.dims_of(region).empty()) << "regions of this plan are whole runs";
      sums.observe(region.to, region.dst_offset_bytes,
                   std::span(file).subspan(region.dst_offset_bytes, region.run_bytes));
    }
    entries.push_back(
        sums.add({.number = i, .cells = {i, i + 1}, .digests = {}, .records = {}, .writes = {}}));
  }
  return entries;
}

bool equal(std::span<std::uint64_t const> a, std::span<std::uint64_t const> b) {
  return std::ranges::equal(a, b);
}

TEST(TargetSums, WhatRoundsNotedMakesTheSameSumsAgain) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  auto const layouts = layouts_of(job.plan);
  std::size_t const cells = job.plan.plan.cells.size();
  ASSERT_GT(cells, 4U);
  TargetSums whole(job.plan, layouts, 0, FileSums::taken);
  write_cells(whole, job.plan, 0, cells);

  TargetSums first(job.plan, layouts, 0, FileSums::taken);
  JournalEntry const done = joined(write_cells(first, job.plan, 0, cells / 2));
  TargetSums second(job.plan, layouts, 0, FileSums::taken);
  second.add_earlier(done, true);
  auto const rest = write_cells(second, job.plan, cells / 2, cells);
  EXPECT_TRUE(equal(second.files().shares(), whole.files().shares()));
  EXPECT_TRUE(std::ranges::equal(second.records().shares(), whole.records().shares()));

  // A third run learns both from journals: what the second noted is without what it took over.
  std::vector<JournalEntry> all{done};
  all.insert(all.end(), rest.begin(), rest.end());
  TargetSums third(job.plan, layouts, 0, FileSums::taken);
  third.add_earlier(joined(all), true);
  EXPECT_TRUE(equal(third.files().shares(), whole.files().shares()));
  EXPECT_TRUE(std::ranges::equal(third.records().shares(), whole.records().shares()));
}

TEST(TargetSums, OnlyOneRankHasTheSumsOfEarlierRuns) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  auto const layouts = layouts_of(job.plan);
  TargetSums first(job.plan, layouts, 0, FileSums::taken);
  JournalEntry const done = joined(write_cells(first, job.plan, 0, 3));
  TargetSums other(job.plan, layouts, 0, FileSums::taken);
  other.add_earlier(done, false);
  for (std::uint64_t const share : other.files().shares()) EXPECT_EQ(share, 0U);
  for (std::uint32_t const share : other.records().shares()) EXPECT_EQ(share, 0U);
}

TEST(TargetSums, FilesThatAreNotReadBackHaveNoSums) {
  test::SmallJob const job = test::small_job(test::small_limits(false));
  TargetSums sums(job.plan, layouts_of(job.plan), 0, FileSums::not_taken);
  auto const entries = write_cells(sums, job.plan, 0, job.plan.plan.cells.size());
  for (JournalEntry const& entry : entries) EXPECT_TRUE(entry.files.empty());
  for (std::uint64_t const share : sums.files().shares()) EXPECT_EQ(share, 0U);
}

TEST(TargetSums, LimitsAreThoseOfThePlan) {
  test::SmallJob const job = test::small_job(test::small_limits(true));
  TargetSums sums(job.plan, layouts_of(job.plan), 5, FileSums::taken);
  EXPECT_EQ(sums.limits().cells, job.plan.plan.cells.size());
  EXPECT_EQ(sums.limits().digests, job.plan.plan.tensor_bytes.size());
  EXPECT_EQ(sums.limits().records, sums.records().shares().size());
  ASSERT_EQ(sums.limits().file_bytes.size(), job.plan.files.size());
  EXPECT_EQ(sums.limits().file_bytes.back(), job.plan.files.back().size_bytes);
  EXPECT_EQ(sums.limits().sources, 5U);
}

}  // namespace
}  // namespace reshard
