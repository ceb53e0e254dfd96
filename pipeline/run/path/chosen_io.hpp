#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "core/io/io_trial.hpp"
#include "pipeline/run/planned_job.hpp"
#include "pipeline/run/run_context.hpp"

namespace reshard {

/// With which engines the job reads and writes. The same on every rank.
struct ChosenIo {
  std::string_view read;
  std::string_view write;
  IoTrial read_trial;  ///< without rates: none was made; on rank 0
  IoTrial write_trial;
};

/// run.io; of "auto" in a large job what a short trial of rank 0 says, of others the default. The
/// source's files of the job are read with it from here on. `folder` is the target's that is not
/// published yet. Collective.
ChosenIo choose_io(JobRun const& run, PlannedJob& job, std::filesystem::path const& folder);

}  // namespace reshard
