#include "core/transport/lone_start.hpp"

#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/transport/comm.hpp"
#include "core/transport/sum_all.hpp"

namespace reshard {
namespace {

bool alone_with(std::vector<char const*> const& variables) {
  std::vector<char const*> environment = {"PATH=/bin", "OMPI_MCA_mpi_yield_when_idle=1",
                                          "OMPI_ALLOW_RUN_AS_ROOT=1", "SLURM_JOB_ID=7"};
  environment.insert(environment.end(), variables.begin(), variables.end());
  environment.push_back(nullptr);
  return is_started_alone(environment.data());
}

TEST(LoneStart, IsThatOfAProcessWithoutALauncher) {
  for (char const* variable :
       {"HOME=/", "OMPI_MCA_pml=ob1", "OMPI_MCA_ess_singleton_isolated=0", "SLURM_NTASKS=4",
        "XPMI_RANK=0", "PMIX_MCA_gds=hash", "PRTE_MCA_plm=ssh", "PMI_MMAP_SYNC_WAIT_TIME=3"})
    EXPECT_TRUE(alone_with({variable})) << variable;
}

TEST(LoneStart, IsNotThatOfARankWhoseNumberIsUnknown) {
  for (char const* variable :
       {"OMPI_COMM_WORLD_RANK=0", "PMIX_RANK=0", "PMI_RANK=0", "PMI_FD=12", "PMI_PORT=n1:7",
        "SLURM_STEP_ID=0", "MPI_LOCALRANKID=0", "ALPS_APP_PE=0", "PALS_RANKID=0",
        "FLUX_TASK_RANK=0", "JSM_NAMESPACE_RANK=0", "LSB_PJL_TASK_GEOMETRY={(0)}"})
    EXPECT_FALSE(alone_with({variable})) << variable;
}

TEST(LoneStart, IsThatOfAJobOfOneProcess) {
  char const* const rank = "PMIX_RANK=0";
  char const* const of_slurm = "PMIX_NAMESPACE=slurm.pmix.3.0";
  char const* const of_prrte = "PMIX_NAMESPACE=prterun-host-71@1";
  EXPECT_TRUE(alone_with({"SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=1"}));
  EXPECT_FALSE(alone_with({"SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2"}));
  EXPECT_TRUE(alone_with({"SLURM_STEP_NUM_TASKS=1", rank, of_slurm}));
  EXPECT_FALSE(alone_with({"SLURM_STEP_NUM_TASKS=2", rank, of_slurm}));
  EXPECT_TRUE(alone_with({"SLURM_STEP_NUM_TASKS=1", "PMI_FD=9", "PMI_RANK=0", "PMI_SIZE=1"}));
  EXPECT_FALSE(alone_with({"SLURM_STEP_NUM_TASKS=1", "PMI_FD=9", "PMI_RANK=0", "PMI_SIZE=3"}));
  EXPECT_TRUE(alone_with({"OMPI_COMM_WORLD_SIZE=1", rank, of_prrte}));
  EXPECT_FALSE(alone_with({"OMPI_COMM_WORLD_SIZE=4", rank, of_prrte}));
}

TEST(LoneStart, IsNotThatOfARankThatAShellOfOneProcessHasStarted) {
  EXPECT_FALSE(alone_with({"SLURM_STEP_NUM_TASKS=1", "OMPI_COMM_WORLD_SIZE=4", "PMIX_RANK=0",
                           "PMIX_NAMESPACE=prterun-host-71@1"}));
  EXPECT_FALSE(
      alone_with({"SLURM_STEP_NUM_TASKS=1", "PMIX_RANK=0", "PMIX_NAMESPACE=of-some-other-server"}));
  EXPECT_FALSE(alone_with({"OMPI_COMM_WORLD_SIZE=1", "SLURM_STEP_NUM_TASKS=8"}));
}

TEST(LoneStart, NeedsNoMpi) {
  if (!is_started_alone(environ)) GTEST_SKIP() << "a launcher started this test";
  MpiSession const session(nullptr, nullptr);
  int is_initialised = 1;
  ASSERT_EQ(MPI_Initialized(&is_initialised), MPI_SUCCESS);
  EXPECT_EQ(is_initialised, 0);
  Comm const comm = Comm::world();
  EXPECT_EQ(comm.rank(), 0);
  EXPECT_EQ(comm.size(), 1);
  comm.barrier();
  EXPECT_EQ(comm.min(3) + comm.max(4) + comm.sum(5), 12);
  EXPECT_EQ(comm.broadcast("word", 0), "word");
  EXPECT_EQ(comm.all_gather("word"), std::vector<std::string>{"word"});
  std::vector<std::uint64_t> values = {7, 9};
  comm.xor_all(values);
  sum_all(comm, values);
  EXPECT_EQ(values, (std::vector<std::uint64_t>{7, 9}));
  int steps = 0;
  together_step_by_step(comm, 1, [&] { return ++steps == 3; });
  EXPECT_EQ(steps, 3);
  EXPECT_THROW(together(comm, [] { fail(ErrorKind::io, "no"); }), Error);
}

}  // namespace
}  // namespace reshard
