#pragma once

#include <string>
#include <vector>

namespace reshard {

/// Whether no launcher (mpirun, srun, another PMI or PMIx server, a resource manager's) has started
/// a process with this environment: then MPI gives it one rank. `environment`: "NAME=value", ended
/// by nullptr, as `environ`.
bool is_started_alone(char const* const* environment);

/// For the length of MPI_Init of a process that is started alone: tells Open MPI not to start a
/// daemon beside it, which only MPI_Comm_spawn needs, and not to look for networks, which one rank
/// does not use. That is most of the time that the start of a short command takes. What the user
/// has set stays as it is, and nothing is left in the environment of other programs. No effect on
/// other MPIs.
class LoneStart {
 public:
  explicit LoneStart(char const* const* environment);
  ~LoneStart();
  LoneStart(LoneStart const&) = delete;
  LoneStart& operator=(LoneStart const&) = delete;

 private:
  std::vector<std::string> set_;  ///< names of variables
};

}  // namespace reshard
