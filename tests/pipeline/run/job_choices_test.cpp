#include "pipeline/run/job_choices.hpp"

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/plan/round_sizes.hpp"

namespace reshard {
namespace {

/// The sentence that refuses a choice; "" when nothing does.
std::string refusal(JobSpec const& spec, int ranks) {
  auto const error = capture([&] { check_choices(spec, ranks); });
  if (!error) return "";
  EXPECT_EQ(error->kind(), ErrorKind::usage);
  return error->sentence();
}

TEST(JobChoices, UsualOnesAreFine) { EXPECT_EQ(refusal({}, 4), ""); }

TEST(JobChoices, TooLittleMemoryIsRefused) {
  JobSpec spec;
  spec.run.memory_bytes = least_staging_bytes - 1;
  EXPECT_NE(refusal(spec, 1).find("[run] memory"), std::string::npos);
  spec.run.memory_bytes = least_staging_bytes;
  EXPECT_EQ(refusal(spec, 1), "");
}

TEST(JobChoices, WhatIsWrittenTogetherIsReadBack) {
  JobSpec spec;
  spec.target.io = TargetIo::collective;
  EXPECT_EQ(refusal(spec, 2), "");
  spec.run.verify = VerifyChoice::streamed;
  EXPECT_NE(refusal(spec, 2).find("run.verify = \"streamed\""), std::string::npos);
  spec.target.io = TargetIo::independent;
  EXPECT_EQ(refusal(spec, 2), "");
}

TEST(JobChoices, RanksDoNotExchangeWhileALibraryUsesMpi) {
  JobSpec spec;
  spec.target.io = TargetIo::independent;
  spec.run.transport = TransportChoice::mpi;
  EXPECT_FALSE(is_exchanging(spec, 1));
  EXPECT_EQ(refusal(spec, 1), "");
  EXPECT_TRUE(is_exchanging(spec, 2));
  EXPECT_NE(refusal(spec, 2).find("run.transport = \"mpi\""), std::string::npos);
}

TEST(JobChoices, ARoundFitsHostAndDevice) {
  JobSpec spec;
  spec.run.memory_bytes = std::uint64_t{8} << 30;
  spec.run.device = DeviceChoice::host;
  EXPECT_EQ(round_memory(spec), spec.run.memory_bytes);
  spec.run.device = DeviceChoice::automatic;
  EXPECT_EQ(round_memory(spec), std::min(spec.run.memory_bytes, spec.run.device_bytes()));
}

}  // namespace
}  // namespace reshard
