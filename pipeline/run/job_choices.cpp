#include "pipeline/run/job_choices.hpp"

#include <algorithm>
#include <utility>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/plan/cells/round_sizes.hpp"
#include "core/transport/rank_threads.hpp"

namespace reshard {
namespace {

/// MPI-IO keeps every file of the target open on every rank.
constexpr std::size_t most_open_containers = 256;

void check_memory(JobSpec const& spec) {
  for (auto const& [key, bytes] : {std::pair("memory", spec.run.memory_bytes),
                                   std::pair("device_memory", spec.run.device_bytes())})
    if (bytes < least_staging_bytes)
      fail(ErrorKind::usage,
           "[run] {} = {} ({} bytes): at least {} are needed. Set it to \"1 MiB\" or more.", key,
           human_bytes(bytes), bytes, human_bytes(least_staging_bytes));
}

void check_verify(JobSpec const& spec) {
  if (spec.target.options.hdf5.io == hdf5::TargetIo::collective &&
      spec.run.verify != VerifyChoice::written)
    fail(
        ErrorKind::usage,
        "[target] io = \"collective\": some MPI libraries report success for a collective write that failed, and run.verify = \"{}\" does not "
        "read the "
        "files back. Set verify = \"written\", or another io.",
        spec.run.verify == VerifyChoice::off ? "off" : "streamed");
}

}  // namespace

std::size_t threads_of(JobSpec const& spec, Comm const& comm) {
  std::size_t const own = rank_threads(comm);
  return spec.run.threads > 0 ? static_cast<std::size_t>(spec.run.threads) : own;
}

bool is_exchanging(JobSpec const& spec, int ranks) {
  return spec.run.transport != TransportChoice::automatic && ranks > 1;
}

bool is_by_library(JobSpec const& spec) {
  return spec.target.options.hdf5.io == hdf5::TargetIo::independent ||
         spec.target.options.hdf5.io == hdf5::TargetIo::collective;
}

std::uint64_t round_memory(JobSpec const& spec) {
  bool const host_only = spec.run.device == DeviceChoice::host;
  return host_only ? spec.run.memory_bytes
                   : std::min(spec.run.memory_bytes, spec.run.device_bytes());
}

void check_choices(JobSpec const& spec, int ranks) {
  check_memory(spec);
  check_verify(spec);
  if (is_by_library(spec) && is_exchanging(spec, ranks))
    fail(
        ErrorKind::usage,
        "[target] io = \"{}\": libhdf5 uses MPI on another thread than run.transport = \"{}\", and each would wait for ranks that are busy with "
        "the "
        "other. Set io or transport to \"auto\".",
        spec.target.options.hdf5.io == hdf5::TargetIo::collective ? "collective" : "independent",
        spec.run.transport == TransportChoice::mpi ? "mpi" : "nccl");
}

void check_files(JobSpec const& spec, JobPlan const& plan) {
  if (is_by_library(spec) && plan.files.size() > most_open_containers)
    fail(
        ErrorKind::usage,
        "[target] part_bytes: makes {}, with this io at most {} can be open together. Raise part_bytes, or set io = \"direct\".",
        counted(plan.files.size(), "file"), most_open_containers);
}

}  // namespace reshard
