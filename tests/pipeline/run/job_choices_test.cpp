#include "pipeline/run/job_choices.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/plan/cells/round_sizes.hpp"
#include "pipeline/job/job_paths.hpp"
#include "pipeline/publication/incremental/reuse_files.hpp"
#include "pipeline/run/event_file.hpp"
#include "pipeline/run/path/gpu_path.hpp"
#include "tests/pipeline/small_job.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/other_user.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

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
  spec.target.options.hdf5.io = hdf5::TargetIo::collective;
  EXPECT_EQ(refusal(spec, 2), "");
  spec.run.verify = VerifyChoice::streamed;
  EXPECT_NE(refusal(spec, 2).find("run.verify = \"streamed\""), std::string::npos);
  spec.target.options.hdf5.io = hdf5::TargetIo::independent;
  EXPECT_EQ(refusal(spec, 2), "");
}

TEST(JobChoices, RanksDoNotExchangeWhileALibraryUsesMpi) {
  JobSpec spec;
  spec.target.options.hdf5.io = hdf5::TargetIo::independent;
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

TEST(JobChoices, NoMoreContainersThanALibraryHoldsOpen) {
  JobSpec spec;
  spec.target.format = FormatId::hdf5;
  spec.target.options.hdf5.io = hdf5::TargetIo::independent;
  JobPlan plan;
  plan.files.resize(257);
  test::expect_refused(ErrorKind::usage,
                       "[target] part_bytes: makes 257 files, with this io at most 256",
                       [&] { check_files(spec, plan); });
  plan.files.resize(256);
  check_files(spec, plan);
}

TEST(EventFile, IsNoFileOfOtherThingsAndNotWhereNoneCanBe) {
  ScratchFolder const scratch("events");
  write_text_file(scratch.path() / "notes", "notes of mine\n");
  test::expect_refused(ErrorKind::usage, "notes: exists and contains other data than events",
                       [&] { EventFile const file((scratch.path() / "notes").string()); });
  test::expect_refused(ErrorKind::usage, "cannot be written: No such file or directory",
                       [&] { EventFile const file((scratch.path() / "no" / "events").string()); });
}

TEST(GpuPath, NeedsTheMemoryThatAJobAsksFor) {
  PathChoice choice;
  choice.device = DeviceChoice::emulated;
  GpuPath const path(choice, 0, Comm::world(), 10);
  path.expect_memory(1);
  test::expect_refused(ErrorKind::resources, "of its memory are needed",
                       [&] { path.expect_memory(std::uint64_t{1} << 60U); });
}

class JobPaths : public testing::Test {
 protected:
  void check(fs::path const& file) const { check_outside_job(file, "--trace", spec_, {}); }

  ScratchFolder scratch_{"job_paths"};
  JobSpec spec_ = test::small_spec(scratch_.path());
};

TEST_F(JobPaths, ThatLeadNowhereAreRefused) {
  test::expect_refused(ErrorKind::usage, "--trace: the path is empty", [&] { check(""); });
  fs::create_symlink("loop", scratch_.path() / "loop");
  test::expect_refused(ErrorKind::target, "cannot be followed: Too many levels of symbolic links",
                       [&] { check(scratch_.path() / "loop" / "x"); });
  ::chmod(scratch_.path().c_str(), 0700);
  test::AsOtherUser const user;
  if (!user.is_other()) GTEST_SKIP() << "needs two users, so root";
  test::expect_refused(ErrorKind::io, "cannot be accessed: Permission denied",
                       [&] { check(scratch_.path() / "folder" / "x"); });
}

TEST(PreviousFiles, ThatChangedWhileAJobRunsAreNotTakenOver) {
  ScratchFolder const scratch("previous");
  fs::path const path = scratch.path() / "file";
  write_text_file(path, "before");
  PreviousFile previous;
  previous.path = path;
  previous.stamp = File::open_for_reading(path).stamp();
  (void)open_previous(previous);
  write_text_file(path, "much later");
  test::expect_refused(ErrorKind::io, "file: changed while this job ran, which takes over",
                       [&] { (void)open_previous(previous); });
}

}  // namespace
}  // namespace reshard
