#include "pipeline/publication/incremental/taken_tensors.hpp"

#include <gtest/gtest.h>

#include "core/plan/cells/schedule.hpp"
#include "pipeline/publication/target_sums.hpp"
#include "tests/pipeline/small_job.hpp"

namespace reshard {
namespace {

using Digests = std::vector<std::optional<std::uint64_t>>;

/// Four matrices of bfloat16 in files of two; `last` is the shape of the last one.
JobPlan plan_of(FormatId format = FormatId::huggingface, std::vector<Index> last = {64, 96}) {
  test::MadeCheckpoint const source =
      test::made_dcp({{"a", {64, 96}}, {"b", {64, 96}}, {"c", {64, 96}}, {"d", std::move(last)}});
  PlanRequest request;
  request.target.format = format;
  request.read.map = "none";
  request.target.tool_version = "1.0";
  request.options.huggingface.shard_bytes = 2 * 64 * 96 * 2;
  return make_job_plan(source.value, request, test::small_limits(true));
}

Digests recorded(JobPlan const& plan) {
  Digests digests;
  for (std::size_t t = 0; t < plan.model->tensors().size(); ++t) digests.emplace_back(100 + t);
  return digests;
}

std::size_t number_of(JobPlan const& plan, std::string const& name) {
  return index(plan.model->find_tensor(name).value());
}

std::uint64_t bytes_in(std::vector<FileSpan> const& places) {
  std::uint64_t bytes = 0;
  for (FileSpan const& place : places) bytes += place.end - place.begin;
  return bytes;
}

TEST(TakenTensors, EverythingIsTakenWhereAllIsRecordedAlike) {
  JobPlan const plan = plan_of();
  ASSERT_EQ(plan.files.size(), 2U);
  TakenTensors const taken = choose_taken(plan, recorded(plan), {true, true});
  EXPECT_EQ(bytes_in(taken.places), plan.plan.target_bytes);
  EXPECT_EQ(taken.digests[number_of(plan, "c")], 100 + number_of(plan, "c"));
  JournalEntry const work = work_of_taken(plan, taken);
  EXPECT_EQ(work.cells, (std::vector<CellRange>{{0, plan.plan.cells.size()}}));
}

TEST(TakenTensors, OneWithoutARecordOrInAFileThatCannotBeUsedIsRead) {
  JobPlan const plan = plan_of();
  Digests same = recorded(plan);
  same[number_of(plan, "b")].reset();
  TakenTensors const one = choose_taken(plan, same, {true, true});
  for (auto const& [name, is_taken] : {std::pair("a", true), {"b", false}, {"c", true}})
    EXPECT_EQ(one.tensors[number_of(plan, name)], is_taken) << name;
  TakenTensors const two = choose_taken(plan, same, {true, false});
  for (auto const& [name, is_taken] : {std::pair("a", true), {"b", false}, {"c", false}})
    EXPECT_EQ(two.tensors[number_of(plan, name)], is_taken) << name;
  EXPECT_TRUE(choose_taken(plan, same, {false, false}).empty());
}

/// A CRC-32 in the file is of bytes that would have to be read.
TEST(TakenTensors, FilesThatRecordChecksumsOfTheirTensorsTakeNothing) {
  JobPlan const plan = plan_of(FormatId::dcp);
  EXPECT_TRUE(
      choose_taken(plan, recorded(plan), std::vector<bool>(plan.files.size(), true)).empty());
}

TEST(TakenTensors, WithTheRestOfTheCellsThePlanIsDone) {
  JobPlan plan = plan_of();
  Digests same = recorded(plan);
  std::size_t const read = number_of(plan, "b");
  same[read].reset();
  JournalEntry const work = work_of_taken(plan, choose_taken(plan, same, {true, true}));
  std::vector<TargetLayout> layouts;
  for (TargetFile const& file : plan.files)
    layouts.push_back({file.path, file.size_bytes, file.frame});
  for (bool const all : {true, false}) {
    TargetSums sums(plan, layouts, 0, FileSums::taken, 4096);
    sums.add_taken(work, true);
    JobPlan const& whole = plan;
    Plan left = whole.plan;
    auto const kept = drop_cells(left, work.cells);
    ASSERT_GT(kept.size(), 1U);
    for (std::size_t i = 0; i < kept.size() - (all ? 0 : 1); ++i) {
      for (Region const& region : left.regions_of(left.cells[i])) {
        std::vector<std::byte> const zeros(bytes_of(region, left.dims_of(region)));
        sums.observe(region.to, region.dst_offset_bytes, zeros);
      }
      DigestShare const share{DigestId(read), 0, left.cells[i].source_bytes};
      sums.add({i, {i, i + 1}, std::span(&share, 1), {}, {}});
    }
    // One rank has nothing to gather.
    std::swap(plan.plan, left);
    EXPECT_EQ(capture([&] { sums.account().expect_whole(plan); }).has_value(), !all);
    std::swap(plan.plan, left);
  }
}

/// What was added before the first round is no work of a round: its journal would bring it twice.
TEST(TakenTensors, SumsOfTakenBlocksAreNoChangeOfARound) {
  JobPlan const plan = plan_of();
  std::vector<TargetLayout> layouts;
  for (TargetFile const& file : plan.files)
    layouts.push_back({file.path, file.size_bytes, file.frame});
  TargetSums sums(plan, layouts, 0, FileSums::taken, 4096);
  sums.files().add_block(0, 4096, 77);
  sums.add_taken({}, true);
  EXPECT_TRUE(sums.add({0, {0, 1}, {}, {}, {}}).files.empty());
  sums.files().add_block(1, 0, 78);
  EXPECT_EQ(sums.add({1, {1, 2}, {}, {}, {}}).files.size(), 1U);
}

TEST(TakenTensors, ALayoutIsWhatLiesWhere) {
  std::vector<std::uint64_t> const layouts = file_layouts(plan_of());
  EXPECT_EQ(file_layouts(plan_of()), layouts);
  EXPECT_NE(layouts[0], layouts[1]);
  // The same bytes, of another shape.
  std::vector<std::uint64_t> const other = file_layouts(plan_of(FormatId::huggingface, {96, 64}));
  EXPECT_EQ(other[0], layouts[0]);
  EXPECT_NE(other[1], layouts[1]);
}

TEST(TakenTensors, PlacesAreCutIntoCompleteBlocksAndTheRest) {
  std::vector<FileSpan> const places = {{0, 10, 90}, {0, 150, 405}, {0, 500, 530}};
  BlockParts const parts = in_blocks(places, 100, 530);
  EXPECT_EQ(parts.blocks, (std::vector<FileSpan>{{0, 200, 400}, {0, 500, 530}}));
  EXPECT_EQ(parts.rest, (std::vector<FileSpan>{{0, 10, 90}, {0, 150, 200}, {0, 400, 405}}));
}

}  // namespace
}  // namespace reshard
