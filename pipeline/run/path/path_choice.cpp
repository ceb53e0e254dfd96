#include "pipeline/run/path/path_choice.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/plan/compile.hpp"

namespace reshard {
namespace {

// Bytes per second, measured on a host with an H200 with files in memory (docs/measurements.md):
// what one rank of two reads or writes, one core's work in such a job, and both ways over PCIe 5.
constexpr double storage_rate = 2e9;
constexpr double run_rate = 5e9;           // of runs of 4 bytes and more
constexpr double element_rate = 2e9;       // of smaller ones: transposes
constexpr double convert_rate = 3.5e9;     // in results
constexpr double link_rate = 40e9;         // between host and GPU, each way
constexpr double gpu_start_seconds = 0.5;  // context, pinned memory

// The GPU path must promise this share of the host path's time, or less.
constexpr double worthwhile = 0.8;

double copy_rate(std::uint64_t run_bytes) { return run_bytes >= 4 ? run_rate : element_rate; }

struct Estimate {
  double host_seconds = 0;
  double gpu_seconds = 0;
};

/// Of a pipeline the slowest stage counts; on the host path values are computed by the thread that
/// reads.
Estimate estimate(PathLoad const& load, int ranks_per_gpu) {
  double const read = static_cast<double>(load.bytes_read) / storage_rate;
  double const write = static_cast<double>(load.bytes_written) / storage_rate;
  double const over_link =
      static_cast<double>(load.copied_bytes + load.computed_bytes) / (link_rate / ranks_per_gpu);
  return {std::max({read + load.host_compute_seconds, load.host_copy_seconds, write}),
          std::max({read, over_link, write}) + gpu_start_seconds};
}

bool wins(Estimate const& seconds) {
  return seconds.gpu_seconds < worthwhile * seconds.host_seconds;
}

std::string work_text(PathLoad const& load, Estimate const& seconds) {
  return fmt::format(
      "the busiest rank rearranges {} and converts {}: about {:.1f} s in host memory",
      human_bytes(load.copied_bytes), human_bytes(load.computed_bytes), seconds.host_seconds);
}

std::string place_of(RankDevices const& rank) {
  return fmt::format("rank {} on {}", rank.rank, rank.host);
}

/// Host and id of the device that a rank takes.
std::pair<std::string, std::string> taken(std::vector<RankDevices> const& ranks, int rank) {
  RankDevices const& own = ranks[static_cast<std::size_t>(rank)];
  return {own.host,
          own.ids.empty() ? "" : own.ids[static_cast<std::size_t>(device_of_rank(ranks, rank))]};
}

RankDevices const* without_device(std::vector<RankDevices> const& ranks) {
  auto const found = std::find_if(ranks.begin(), ranks.end(),
                                  [](RankDevices const& rank) { return rank.ids.empty(); });
  return found == ranks.end() ? nullptr : &*found;
}

/// How many ranks share one GPU at most.
int sharing(std::vector<RankDevices> const& ranks) {
  std::map<std::pair<std::string, std::string>, int> takers;
  int most = 1;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    most = std::max(most, ++takers[taken(ranks, static_cast<int>(r))]);
  return most;
}

PathChoice automatic_choice(std::vector<RankDevices> const& ranks, PathLoad const& load) {
  PathChoice choice;
  if (auto const reason = reason_against_gpus(load)) {
    choice.why = *reason;
    return choice;
  }
  if (RankDevices const* const missing = without_device(ranks)) {
    choice.why = fmt::format("no GPU for {}: {}", place_of(*missing), missing->why_none);
    return choice;
  }
  Estimate const seconds = estimate(load, sharing(ranks));
  if (wins(seconds)) choice.device = DeviceChoice::cuda;
  choice.why = fmt::format("{}, {:.1f} s on a GPU", work_text(load, seconds), seconds.gpu_seconds);
  return choice;
}

void expect_devices(std::vector<RankDevices> const& ranks, bool nccl) {
  RankDevices const* const missing = without_device(ranks);
  if (missing == nullptr) return;
  fail(ErrorKind::resources,
       "[run] {}: {} has no GPU: {}. Start the job where every rank sees a GPU, or set {}.",
       nccl ? "transport = \"nccl\"" : "device = \"cuda\"", place_of(*missing), missing->why_none,
       nccl ? "run.transport to auto or mpi, and run.device to auto or host"
            : "run.device = \"host\"");
}

}  // namespace

std::optional<std::string> reason_against_gpus(PathLoad const& load) {
  if (load.copied_bytes + load.computed_bytes == 0)
    return "every byte is copied from file to file unchanged";
  Estimate const seconds = estimate(load, 1);
  if (wins(seconds)) return std::nullopt;
  return fmt::format("{}; a GPU would not be faster", work_text(load, seconds));
}

PathLoad load_of(Plan const& plan, CellRange cells, std::span<SourceView const> views,
                 std::uint32_t first_view_file) {
  PathLoad load;
  for (std::size_t c = cells.begin; c < cells.end; ++c) {
    Cell const& cell = plan.cells[c];
    load.bytes_read += cell.source_bytes;
    load.bytes_written += cell.target_bytes;
    for (Region const& region : plan.regions_of(cell)) {
      auto const dims = plan.dims_of(region);
      std::uint64_t const bytes = bytes_of(region, dims);
      // Adapters are merged, and values rounded to target.dtype, on the host in any case.
      bool const computed = region.src_file >= first_view_file &&
                            region.src_file - first_view_file < views.size() &&
                            !only_on_host(views[region.src_file - first_view_file]);
      bool const straight = dims.empty() && region.run_bytes >= straight_bytes;
      if (computed) {
        load.computed_bytes += bytes;
        load.host_compute_seconds += static_cast<double>(bytes) / convert_rate;
      }
      if (straight && !computed) load.straight_bytes += bytes;
      if (straight) continue;
      load.copied_bytes += bytes;
      load.host_copy_seconds += static_cast<double>(bytes) / copy_rate(region.run_bytes);
    }
  }
  return load;
}

PathChoice choose_path(JobSpec::Run const& run, std::vector<RankDevices> const& ranks,
                       PathLoad const& load) {
  PathChoice choice;
  bool const nccl = run.transport == TransportChoice::nccl;
  if (run.device == DeviceChoice::cuda || (nccl && run.device == DeviceChoice::automatic)) {
    expect_devices(ranks, nccl);
    choice.device = DeviceChoice::cuda;
    choice.why =
        run.device == DeviceChoice::cuda ? "set by the job" : "run.transport = \"nccl\" needs it";
  } else if (run.device == DeviceChoice::automatic) {
    choice = automatic_choice(ranks, load);
  } else {
    choice.device = run.device;
    choice.why = run.device == DeviceChoice::emulated
                     ? "set by the job; this is slow, and only for testing the GPU path"
                     : "set by the job";
  }
  if (nccl && choice.device != DeviceChoice::cuda)
    fail(
        ErrorKind::usage,
        "[run] transport = \"nccl\": it sends from GPU to GPU. Set run.device to cuda, or run.transport to mpi or auto.");
  choice.exchanging = run.transport != TransportChoice::automatic && ranks.size() > 1;
  choice.transport = nccl ? TransportChoice::nccl : TransportChoice::mpi;
  return choice;
}

int device_of_rank(std::vector<RankDevices> const& ranks, int rank) {
  RankDevices const& own = ranks[static_cast<std::size_t>(rank)];
  auto const before =
      std::count_if(ranks.begin(), ranks.begin() + rank,
                    [&](RankDevices const& other) { return other.host == own.host; });
  return own.ids.empty() ? 0 : static_cast<int>(before) % static_cast<int>(own.ids.size());
}

int ranks_on_device_of(std::vector<RankDevices> const& ranks, int rank) {
  auto const own = taken(ranks, rank);
  int count = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    count += taken(ranks, static_cast<int>(r)) == own ? 1 : 0;
  return count;
}

}  // namespace reshard
