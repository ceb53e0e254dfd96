#pragma once

#include <atomic>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/base/json.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/run/progress.hpp"
#include "pipeline/run/run_report.hpp"

namespace reshard {

/// What the program brings to every job.
struct RunContext {
  std::vector<std::filesystem::path> map_folders;
  std::atomic<bool> const* stop = nullptr;  ///< set by a signal to any rank: the run ends with
                                            ///< `interrupted` after the round that is being written
  std::optional<std::filesystem::path> trace_file = std::nullopt;  ///< gets the run's timeline
  Json source_record = {};  ///< more for the "source" of the target's manifest
  bool fresh = false;       ///< what an interrupted run left is not gone on with
  ProgressStyle progress = ProgressStyle::none;
  EventFile* events = nullptr;  ///< of rank 0; may be null
};

/// Reads the headers, plans, moves the bytes and publishes the target. Collective; every rank gets
/// the same report or the same Error.
RunReport run(JobSpec const& job, RunContext const& context, Comm const& comm);

/// The same without touching data: what would be read, moved and written.
RunReport plan_only(JobSpec const& job, RunContext const& context, Comm const& comm);

}  // namespace reshard
