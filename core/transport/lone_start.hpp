#pragma once

namespace reshard {

/// Whether a process with this environment is the only one of its job: no launcher (mpirun, srun,
/// another PMI or PMIx server, a resource manager's) has started it, or one that states a size of
/// one process. A process started from within a job of one process counts as well. `environment`:
/// "NAME=value", ended by nullptr, as `environ`.
bool is_started_alone(char const* const* environment);

}  // namespace reshard
