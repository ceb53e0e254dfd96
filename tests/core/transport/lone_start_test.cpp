#include "core/transport/lone_start.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/transport/comm.hpp"

namespace reshard {
namespace {

constexpr char const* daemon_word = "OMPI_MCA_ess_singleton_isolated";
constexpr char const* networks_word = "OMPI_MCA_pml";

bool alone_with(char const* variable) {
  char const* const environment[] = {"PATH=/bin",
                                     "OMPI_MCA_mpi_yield_when_idle=1",
                                     "OMPI_ALLOW_RUN_AS_ROOT=1",
                                     "SLURM_JOB_ID=7",
                                     variable,
                                     nullptr};
  return is_started_alone(environment);
}

TEST(LoneStart, IsThatOfAProcessWithoutALauncher) {
  for (char const* variable : {"HOME=/", "OMPI_MCA_pml=ob1", "SLURM_NTASKS=4", "XPMI_RANK=0"})
    EXPECT_TRUE(alone_with(variable)) << variable;
  for (char const* variable :
       {"OMPI_COMM_WORLD_SIZE=1", "OMPI_MCA_ess_base_jobid=3", "OMPI_MCA_orte_ess_num_procs=1",
        "PMIX_RANK=0", "PMIX_NAMESPACE=slurm.pmix.3.0", "PMI_RANK=0", "PMI_FD=12",
        "SLURM_STEP_ID=0", "MPI_LOCALRANKID=0", "ALPS_APP_PE=0", "PALS_RANKID=0",
        "FLUX_TASK_RANK=0", "JSM_NAMESPACE_RANK=0", "LSB_PJL_TASK_GEOMETRY={(0)}"})
    EXPECT_FALSE(alone_with(variable)) << variable;
}

/// A variable of this process, put back at the end.
class Variable {
 public:
  Variable(char const* name, char const* value) : name_(name) {
    if (char const* const before = std::getenv(name)) before_ = before;
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Variable(Variable const&) = delete;
  Variable& operator=(Variable const&) = delete;

  std::string now() const {
    char const* const value = std::getenv(name_);
    return value == nullptr ? "unset" : value;
  }

 private:
  char const* name_;
  std::optional<std::string> before_;
};

TEST(LoneStart, LastsForItsScopeAndLeavesWhatTheUserHasSet) {
  char const* const none[] = {nullptr};
  Variable const of_daemon(daemon_word, nullptr);
  Variable const of_networks(networks_word, "ucx");
  {
    LoneStart const start(none);
    EXPECT_EQ(of_daemon.now(), "1");
    EXPECT_EQ(of_networks.now(), "ucx");
  }
  EXPECT_EQ(of_daemon.now(), "unset");
  EXPECT_EQ(of_networks.now(), "ucx");
}

TEST(LoneStart, DoesNothingUnderALauncher) {
  char const* const launched[] = {"PMIX_RANK=0", nullptr};
  Variable const of_daemon(daemon_word, nullptr);
  LoneStart const start(launched);
  EXPECT_EQ(of_daemon.now(), "unset");
}

std::size_t children() {
  std::size_t count = 0;
  for (auto const& entry : std::filesystem::directory_iterator("/proc")) {
    std::string line;
    if (!std::getline(std::ifstream(entry.path() / "stat"), line)) continue;
    std::size_t const behind_name = line.rfind(") ");  // then the state, and the parent
    if (behind_name != std::string::npos &&
        line.substr(behind_name + 4).starts_with(std::to_string(::getpid()) + " "))
      ++count;
  }
  return count;
}

TEST(LoneStart, OfMpiStartsNoOtherProcess) {
  if (!is_started_alone(environ)) GTEST_SKIP() << "a launcher started this test";
  Variable const of_daemon(daemon_word, nullptr);
  std::size_t const before = children();
  MpiSession const session(nullptr, nullptr);
  EXPECT_EQ(children(), before);
  EXPECT_EQ(Comm::world().size(), 1);
  EXPECT_EQ(of_daemon.now(), "unset") << "other programs get it too";
}

}  // namespace
}  // namespace reshard
