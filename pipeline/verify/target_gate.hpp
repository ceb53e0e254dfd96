#pragma once

#include <cstddef>
#include <filesystem>

#include "core/formats/checkpoint.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// A target that is complete and does not have its name yet.
struct GatedTarget {
  JobSpec const& spec;
  Checkpoint const& source;
  JobPlan const& plan;
  std::filesystem::path const& folder;  ///< where it lies
  MapLibrary const& library;
};

/// The tensors that a target's gate has found.
struct GateResult {
  std::size_t tensors = 0;  ///< logical ones, state included
};

/// Opens a target by its headers as a later job opens it as a source, and proves what such a job
/// and `reshard verify` rely on: it is taken for the format that was asked for; its maps describe
/// every stored tensor; every element of each logical tensor and of each slot of optimizer state is
/// there once; and these are the tensors of its reshard.json. Reads no payload. The target is read
/// as its record says, else with the job's own map, prefix and config. Collective; each rank
/// reads a share of the headers and proves a share of the tensors. Errors: self_check, with the
/// reader's sentence; io and resources as they come.
GateResult pass_gate(GatedTarget const& target, Comm const& comm);

}  // namespace reshard
