#pragma once

#include <memory>
#include <string>

#include "pipeline/run/path/gpu_path.hpp"
#include "pipeline/run/planned_job.hpp"

namespace reshard {

/// The way of a job's bytes, ready to be gone.
struct OpenedPath {
  PathChoice path;               ///< host memory where the device could not be used
  std::unique_ptr<GpuPath> gpu;  ///< null on the host path
  std::string warning;           ///< why it could not; "" otherwise
};

/// How much memory of a device the rounds take.
std::uint64_t device_arena_bytes(JobSpec const& spec, RoundTerms const& terms);

/// A GPU takes as long to open as a small job to run: only when everything has been found in order.
/// One that turns out to be unusable is an Error only when the job asks for it. Collective.
OpenedPath open_path(JobSpec const& spec, PlannedJob const& job, Comm const& comm);

}  // namespace reshard
