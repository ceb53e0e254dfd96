#include "core/transport/lone_start.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace reshard {
namespace {

/// What launchers give to the processes that they start: Open MPI's, PMI and PMIx servers of any
/// kind, Slurm's steps, ALPS, PALS, Flux and LSF.
constexpr std::array<std::string_view, 13> marks = {
    "OMPI_COMM_WORLD_", "OMPI_MCA_ess", "OMPI_MCA_orte_", "PRTE_", "PMIX_",      "PMI_",
    "MPI_LOCALRANKID",  "SLURM_STEP_",  "ALPS_APP_",      "PALS_", "FLUX_TASK_", "JSM_",
    "LSB_PJL_TASK"};

/// Of Open MPI 4, which alone has the daemon; 5 ignores it.
constexpr std::pair<char const*, char const*> without_daemon{"OMPI_MCA_ess_singleton_isolated",
                                                             "1"};
/// The layers of messages that open the libraries of fast networks (libfabric, UCX).
constexpr std::pair<char const*, char const*> without_networks{"OMPI_MCA_pml", "^cm,ucx"};

}  // namespace

bool is_started_alone(char const* const* environment) {
  for (; *environment != nullptr; ++environment)
    if (std::ranges::any_of(marks, [&](std::string_view mark) {
          return std::string_view(*environment).starts_with(mark);
        }))
      return false;
  return true;
}

LoneStart::LoneStart(char const* const* environment) {
  if (!is_started_alone(environment)) return;
  for (auto const& [name, value] : {without_daemon, without_networks})
    if (std::getenv(name) == nullptr && ::setenv(name, value, 0) == 0) set_.emplace_back(name);
}

LoneStart::~LoneStart() {
  for (std::string const& name : set_) ::unsetenv(name.c_str());
}

}  // namespace reshard
