#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string_view>

#include "core/base/text/json.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/run/progress.hpp"

namespace reshard {

/// Of the trial of engines (run.io = "auto").
struct IoTrialTerms {
  std::uint64_t least_job_bytes = std::uint64_t{16} << 30;  ///< of the source's files
};

/// The program's share of every job.
struct RunContext {
  MapLibrary library;
  std::atomic<bool> const* stop = nullptr;  ///< set by a signal to any rank: the run ends with
                                            ///< `interrupted` after the round that is being written
  std::optional<std::filesystem::path> trace_file = std::nullopt;  ///< gets the run's timeline
  Json source_record = {};  ///< more for the "source" of the target's manifest
  int ranks = 0;            ///< of plan_only(): for which it plans; 0: those that plan
  bool fresh = false;       ///< what an interrupted run left is not resumed
  ProgressStyle progress = ProgressStyle::none;
  EventFile* events = nullptr;  ///< of rank 0; may be null
  IoTrialTerms io_trial = {};
};

/// Arguments of every phase of a run. Borrows all but the time.
struct JobRun {
  JobSpec const& spec;
  RunContext const& context;
  Comm const& comm;
  Progress& progress;
  std::chrono::steady_clock::time_point begin;
};

/// An Error of kind interrupted when this rank knows of a signal. `when`: "before anything was
/// written".
void check_stop(JobRun const& run, std::string_view when);

/// Seconds from a moment until now.
double seconds_since(std::chrono::steady_clock::time_point start);

}  // namespace reshard
