#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device/device.hpp"
#include "core/plan/cells/schedule.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/views/source_view.hpp"
#include "pipeline/job/job_spec.hpp"

namespace reshard {

/// The load of the busiest rank, as far as it matters for the choice of a path.
struct PathLoad {
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t straight_bytes = 0;  ///< go from file to file as they are, on every path
  std::uint64_t copied_bytes = 0;    ///< rearranged
  std::uint64_t computed_bytes = 0;  ///< other values than stored, counted as results
  double host_copy_seconds = 0;      ///< estimate for one core
  double host_compute_seconds = 0;   ///< estimate for one core
};

/// The load of a rank that does these cells.
PathLoad load_of(Plan const& plan, CellRange cells, std::span<SourceView const> views,
                 std::uint32_t first_view_file);

/// Why no GPU could make this faster, whatever there is, as a clause; nothing when one might. So
/// that GPUs are not searched needlessly: finding them takes seconds on some nodes.
std::optional<std::string> reason_against_gpus(PathLoad const& load);

/// The devices of a rank's host.
struct RankDevices {
  int rank = 0;
  std::string host;              ///< its name
  std::vector<std::string> ids;  ///< of the devices that it sees; none without a device
  std::string why_none;          ///< when there is none
};

/// How a job's bytes go. The same on every rank.
struct PathChoice {
  DeviceChoice device = DeviceChoice::host;          ///< never automatic
  bool exchanging = false;                           ///< ranks send what they read
  TransportChoice transport = TransportChoice::mpi;  ///< mpi or nccl, where exchanging
  std::string why;                                   ///< a human-readable clause
};

/// Chooses. `ranks` is what all ranks found, in rank order (with automatic and a
/// reason_against_gpus(), it is not checked); load is that of the busiest rank.
///
/// automatic takes the GPU only where the estimate says that it clearly wins: bytes that are only
/// moved keep to the host, because storage is slower than one core's copying. Errors: resources
/// when the job asks for a GPU that some rank does not have; usage for NCCL without GPUs.
PathChoice choose_path(JobSpec::Run const& run, std::vector<RankDevices> const& ranks,
                       PathLoad const& load);

/// The number of the device that a rank takes, among those that it sees: ranks of one host take
/// them in turn.
int device_of_rank(std::vector<RankDevices> const& ranks, int rank);
/// How many ranks take the same device as this one, itself included.
int ranks_on_device_of(std::vector<RankDevices> const& ranks, int rank);

}  // namespace reshard
