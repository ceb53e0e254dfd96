#include "pipeline/run/path/path_choice.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

std::vector<RankDevices> ranks_with(std::vector<int> const& devices,
                                    std::string const& host = "node1") {
  std::vector<RankDevices> ranks;
  for (int const count : devices) {
    RankDevices rank{static_cast<int>(ranks.size()),
                     host,
                     {},
                     count == 0 ? "no NVIDIA driver is installed" : ""};
    for (int d = 0; d < count; ++d) rank.ids.push_back("gpu" + std::to_string(d));
    ranks.push_back(rank);
  }
  return ranks;
}

JobSpec::Run asked(DeviceChoice device, TransportChoice transport = TransportChoice::automatic) {
  JobSpec::Run run;
  run.device = device;
  run.transport = transport;
  return run;
}

/// `computed` GiB of BF16 values from FP8 codes, `copied` GiB rearranged in runs of 4 KiB.
PathLoad load(std::uint64_t computed, std::uint64_t copied) {
  PathLoad result;
  result.bytes_read = (computed + copied) * gib;
  result.bytes_written = result.bytes_read;
  result.computed_bytes = computed * gib;
  result.copied_bytes = copied * gib;
  result.host_compute_seconds = static_cast<double>(result.computed_bytes) / 0.5e9;
  result.host_copy_seconds = static_cast<double>(result.copied_bytes) / 6e9;
  return result;
}

std::string sentence_of(JobSpec::Run const& run, std::vector<RankDevices> const& ranks,
                        ErrorKind kind) {
  try {
    choose_path(run, ranks, load(1, 1));
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.sentence();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(PathChoice, AutomaticKeepsToTheHostWithoutGpus) {
  PathChoice const choice =
      choose_path(asked(DeviceChoice::automatic), ranks_with({1, 0}), load(100, 0));
  EXPECT_EQ(choice.device, DeviceChoice::host);
  EXPECT_EQ(choice.why, "no GPU for rank 1 on node1: no NVIDIA driver is installed");
}

TEST(PathChoice, NobodyLooksForGpusThatCouldNotHelp) {
  EXPECT_EQ(reason_against_gpus(load(0, 0)), "every byte is copied from file to file unchanged");
  EXPECT_EQ(
      reason_against_gpus(load(0, 1)),
      "the busiest rank rearranges 1.0 GiB and converts 0 B: about 0.5 s in host memory; a GPU "
      "would not be faster");
  EXPECT_EQ(reason_against_gpus(load(100, 0)), std::nullopt);
  EXPECT_EQ(choose_path(asked(DeviceChoice::automatic), ranks_with({0, 0}), load(0, 1)).why,
            reason_against_gpus(load(0, 1)));
}

TEST(PathChoice, AutomaticKeepsMovedBytesOnTheHostAndComputesOnGpus) {
  EXPECT_EQ(choose_path(asked(DeviceChoice::automatic), ranks_with({1}), load(0, 100)).device,
            DeviceChoice::host);
  EXPECT_EQ(choose_path(asked(DeviceChoice::automatic), ranks_with({1}), load(100, 0)).device,
            DeviceChoice::cuda);
  EXPECT_EQ(choose_path(asked(DeviceChoice::automatic), ranks_with({1}), load(0, 0)).why,
            "every byte is copied from file to file unchanged");
}

TEST(PathChoice, AutomaticKeepsSmallJobsOnTheHost) {
  PathLoad small = load(1, 0);
  small.host_compute_seconds = 0.3;
  EXPECT_EQ(choose_path(asked(DeviceChoice::automatic), ranks_with({1}), small).device,
            DeviceChoice::host);
}

TEST(PathChoice, AutomaticKeepsWhatTheHostConvertsAsFastAsItWrites) {
  // FP8 in blocks of 128 x 128 to BF16, one of two ranks: measured, GPU / host was 1.05.
  PathLoad fp8;
  fp8.bytes_read = 27 * gib / 10;
  fp8.bytes_written = 51 * gib / 10;
  fp8.computed_bytes = 5 * gib;
  fp8.copied_bytes = 27 * gib / 10;
  fp8.host_compute_seconds = 1.5;
  fp8.host_copy_seconds = 0.5;
  EXPECT_EQ(choose_path(asked(DeviceChoice::automatic), ranks_with({1}), fp8).device,
            DeviceChoice::host);
}

TEST(PathChoice, ManyRanksOnOneGpuShareItsLink) {
  PathLoad some = load(10, 0);
  some.host_compute_seconds = 8;
  EXPECT_EQ(choose_path(asked(DeviceChoice::automatic), ranks_with({1}), some).device,
            DeviceChoice::cuda);
  EXPECT_EQ(
      choose_path(asked(DeviceChoice::automatic), ranks_with(std::vector<int>(64, 1)), some).device,
      DeviceChoice::host);
}

TEST(PathChoice, RanksThatSeeOneGpuEachShareNone) {
  std::vector<RankDevices> ranks = ranks_with(std::vector<int>(8, 1));
  EXPECT_EQ(ranks_on_device_of(ranks, 3), 8);
  for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r].ids = {"uuid" + std::to_string(r)};
  EXPECT_EQ(ranks_on_device_of(ranks, 3), 1);
  PathLoad some = load(10, 0);
  some.host_compute_seconds = 8;
  EXPECT_EQ(choose_path(asked(DeviceChoice::automatic), ranks, some).device, DeviceChoice::cuda);
}

TEST(PathChoice, AMissingGpuIsRefusedWhereTheJobAsksForOne) {
  EXPECT_EQ(
      sentence_of(asked(DeviceChoice::cuda), ranks_with({0}), ErrorKind::resources),
      "[run] device = \"cuda\": rank 0 on node1 has no GPU: no NVIDIA driver is installed. Start the job where every rank sees a GPU, or set "
      "run.device = \"host\".");
  EXPECT_NE(sentence_of(asked(DeviceChoice::automatic, TransportChoice::nccl), ranks_with({1, 0}),
                        ErrorKind::resources)
                .find("transport = \"nccl\""),
            std::string::npos);
}

TEST(PathChoice, NcclNeedsGpus) {
  sentence_of(asked(DeviceChoice::host, TransportChoice::nccl), ranks_with({1}), ErrorKind::usage);
}

TEST(PathChoice, OneRankExchangesNothing) {
  EXPECT_FALSE(
      choose_path(asked(DeviceChoice::host, TransportChoice::mpi), ranks_with({0}), load(1, 1))
          .exchanging);
  PathChoice const two =
      choose_path(asked(DeviceChoice::cuda, TransportChoice::nccl), ranks_with({1, 1}), load(1, 1));
  EXPECT_TRUE(two.exchanging);
  EXPECT_EQ(two.transport, TransportChoice::nccl);
}

TEST(PathChoice, RanksOfAHostTakeItsDevicesInTurn) {
  std::vector<RankDevices> ranks = ranks_with({2, 2, 2, 2});
  ranks[2].host = "node2";
  std::vector<int> devices;
  for (int r = 0; r < 4; ++r) devices.push_back(device_of_rank(ranks, r));
  EXPECT_EQ(devices, (std::vector<int>{0, 1, 0, 0}));
}

TEST(PathChoice, LoadTellsStraightRearrangedAndComputedBytesApart) {
  Plan plan;
  plan.dims = {{8, 4096, 8192}};
  std::vector<Region> const stored{{0, 0, 0, 0, 1 << 20, 0, 0},      // straight
                                   {0, 0, 0, 1 << 20, 4096, 0, 1}};  // 8 runs
  Region const of_view{1, 0, 0, 2 << 20, 1 << 20, 0, 0};
  plan.add({.source_bytes = 100, .target_bytes = 200}, stored);
  plan.add({.source_bytes = 10, .target_bytes = 20}, std::span(&of_view, 1));
  std::vector<SourceView> const views(1);
  PathLoad const all = load_of(plan, {0, 2}, views, 1);
  EXPECT_EQ(all.bytes_read, 110U);
  EXPECT_EQ(all.bytes_written, 220U);
  EXPECT_EQ(all.straight_bytes, 1U << 20U);
  EXPECT_EQ(all.copied_bytes, 8U * 4096U);
  EXPECT_EQ(all.computed_bytes, 1U << 20U);
  EXPECT_GT(all.host_compute_seconds, all.host_copy_seconds);
  EXPECT_EQ(load_of(plan, {1, 2}, views, 1).straight_bytes, 0U);
}

}  // namespace
}  // namespace reshard
