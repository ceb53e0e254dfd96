#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "pipeline/run/committed_job.hpp"
#include "pipeline/run/path/chosen_io.hpp"
#include "pipeline/run/streamed_job.hpp"

namespace reshard {

/// The result of making and publishing the target, on this rank.
struct WrittenJob {
  std::uint64_t earlier_runs = 0;
  std::uint64_t bytes_reused = 0;          ///< payload that they had written
  std::optional<RoundCounts> rounds_left;  ///< by them, where there were any
  StreamedJob streamed;
  CommittedJob committed;
  ChosenIo io;
  std::string read_fallback;   ///< why files could not be read as run.io says; "" when they could
  std::string write_fallback;  ///< likewise
};

/// Writes the claimed target, verifies and publishes it. What earlier runs did is taken out of the
/// job's plan. `trace` is null where none is taken. Collective.
WrittenJob write_job(JobRun const& run, PlannedJob& job, SourceWatch const& watch,
                     ClaimedTarget& claimed, GpuPath* gpu, Trace* trace);

/// An earlier run has written and verified everything: the target only gets its name. Collective.
WrittenJob only_publish(JobRun const& run, PlannedJob const& job, SourceWatch const& watch,
                        ClaimedTarget& claimed);

}  // namespace reshard
