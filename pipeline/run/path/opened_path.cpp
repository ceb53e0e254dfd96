#include "pipeline/run/path/opened_path.hpp"

#include <algorithm>

#include "core/base/capture.hpp"

namespace reshard {

std::uint64_t device_arena_bytes(JobSpec const& spec, RoundTerms const& terms) {
  return std::min(spec.run.device_bytes(), arena_bytes(terms));
}

OpenedPath open_path(JobSpec const& spec, PlannedJob const& job, Comm const& comm) {
  OpenedPath opened{job.path, nullptr, ""};
  if (job.path.device == DeviceChoice::host) return opened;
  auto const error = capture([&] {
    opened.gpu = std::make_unique<GpuPath>(job.path, device_of_rank(job.devices, comm.rank()), comm,
                                           spec.run.stall_seconds);
    auto const sharers = static_cast<std::uint64_t>(
        job.path.device == DeviceChoice::cuda ? ranks_on_device_of(job.devices, comm.rank()) : 1);
    together(comm, [&] {
      opened.gpu->expect_memory(sharers * device_arena_bytes(spec, round_terms(spec, job, comm)));
    });
  });
  if (!error) return opened;
  if (spec.run.device != DeviceChoice::automatic || job.path.transport == TransportChoice::nccl)
    throw *error;
  opened.gpu.reset();
  opened.path.device = DeviceChoice::host;
  opened.path.why = "the GPU could not be used";
  opened.warning = "host memory is used instead of a GPU: " + error->sentence();
  return opened;
}

}  // namespace reshard
