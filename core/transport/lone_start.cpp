#include "core/transport/lone_start.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

namespace reshard {
namespace {

using Environment = char const* const*;

/// Environment variables that a launcher sets for its processes, and the one with their number.
/// Variables that users set for MPI (OMPI_MCA_…, PMIX_MCA_…) are no mark of a launcher.
struct Mark {
  std::string_view prefix;
  std::string_view number;  ///< the name of a variable; "": nowhere
};

/// Open MPI's; PMI-1 and PMI-2 of Hydra, Slurm, PALS and others; Slurm's steps; ALPS, Flux, LSF.
constexpr std::array<Mark, 13> marks = {{{"OMPI_COMM_WORLD_", "OMPI_COMM_WORLD_SIZE"},
                                         {"PMI_RANK=", "PMI_SIZE"},
                                         {"PMI_SIZE=", "PMI_SIZE"},
                                         {"PMI_FD=", "PMI_SIZE"},
                                         {"MPI_LOCALRANKID=", "PMI_SIZE"},
                                         {"SLURM_STEP_ID=", "SLURM_STEP_NUM_TASKS"},
                                         {"SLURM_STEP_NUM_TASKS=", "SLURM_STEP_NUM_TASKS"},
                                         {"PALS_RANKID=", "PMI_SIZE"},
                                         {"FLUX_TASK_RANK=", "FLUX_JOB_SIZE"},
                                         {"PMI_PORT=", "PMI_SIZE"},
                                         {"JSM_", "OMPI_COMM_WORLD_SIZE"},
                                         {"ALPS_APP_", ""},
                                         {"LSB_PJL_TASK", ""}}};
std::optional<std::string_view> value_of(Environment environment, std::string_view name) {
  for (; *environment != nullptr; ++environment) {
    std::string_view const entry(*environment);
    if (entry.starts_with(name) && entry.substr(name.size()).starts_with('='))
      return entry.substr(name.size() + 1);
  }
  return std::nullopt;
}

/// The variable with the number of processes under a PMIx server, which sets none itself: Open
/// MPI's mpirun and Slurm do.
std::string_view number_beside_pmix(Environment environment) {
  if (value_of(environment, "OMPI_COMM_WORLD_SIZE")) return "OMPI_COMM_WORLD_SIZE";
  bool const of_slurm =
      value_of(environment, "PMIX_NAMESPACE").value_or("").starts_with("slurm.pmix.");
  return of_slurm ? "SLURM_STEP_NUM_TASKS" : "";
}

}  // namespace

bool is_started_alone(Environment environment) {
  for (Environment entry = environment; *entry != nullptr; ++entry) {
    std::string_view const variable(*entry);
    auto const mark = std::ranges::find_if(
        marks, [&](Mark const& one) { return variable.starts_with(one.prefix); });
    bool const of_pmix = variable.starts_with("PMIX_RANK=");
    if (mark == marks.end() && !of_pmix) continue;
    std::string_view const number = of_pmix ? number_beside_pmix(environment) : mark->number;
    if (number.empty() || value_of(environment, number) != "1") return false;
  }
  return true;
}

}  // namespace reshard
