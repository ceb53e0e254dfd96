#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/publication/target_rounds.hpp"
#include "pipeline/run/checks/source_watch.hpp"
#include "pipeline/run/path/gpu_path.hpp"
#include "pipeline/run/planned_job.hpp"
#include "pipeline/run/run_context.hpp"
#include "stages/stream/stream.hpp"

namespace reshard {

/// The result of moving the bytes, on this rank.
struct StreamedJob {
  std::vector<std::uint64_t> digests;  ///< of what was read, by tensor of the plan
  std::string suspicious;              ///< a warning about what was read (suspicious_parts)
  StreamStats stats;
  std::string write_mode;
  std::uint64_t cells_of_others = 0;  ///< cells that another rank was to do, and their payload
  std::uint64_t bytes_of_others = 0;
  double seconds = 0;
};

/// Where the bytes of a job go.
struct StreamTarget {
  TargetTask const& task;
  BegunTarget& begun;
  TargetRounds& rounds;
};

/// Carries out the rounds of the plan. `gpu` is null on the host path, `trace` where none is taken.
/// Collective.
StreamedJob stream_job(JobRun const& run, PlannedJob const& job, SourceWatch const& watch,
                       StreamTarget const& target, GpuPath* gpu, Trace* trace);

}  // namespace reshard
