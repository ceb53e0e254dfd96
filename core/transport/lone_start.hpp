#pragma once

namespace reshard {

/// Whether a process with this environment is the only one of its job: no launcher (mpirun, srun,
/// another PMI or PMIx server, a resource manager's) has started it, or one that says that it
/// started one process. What a shell in a job of one process starts looks like that process, and is
/// alone as well. `environment`: "NAME=value", ended by nullptr, as `environ`.
bool is_started_alone(char const* const* environment);

}  // namespace reshard
