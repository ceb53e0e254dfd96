#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "core/formats/format.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"

namespace reshard {

/// One checkpoint that a command reads, and how its tensors are understood.
struct CheckpointQuery {
  std::filesystem::path path = {};
  std::string map = "auto";           ///< as in a job file; "none": tensors by their stored names
  std::filesystem::path config = {};  ///< config.json or its folder, where the checkpoint has none
  std::string prefix = {};            ///< of stored names: only those are read, and it is cut off
  MapLibrary library = {};
  /// A job whose [source] and [model] say how it is read; map, config and prefix are its own. null:
  /// none.
  std::shared_ptr<JobSpec const> job = {};
};

/// The job, as far as it says how a checkpoint is read. An Error of kind usage for keys that
/// compute values of several checkpoints, or of quantised ones.
void check_reading(JobSpec const& job);

/// Opens what a changed model is made of beside the source: a file of rows, and a folder with
/// layers for multi-token prediction. Collective.
void add_inputs(Checkpoint& source, ModelChanges const& changes, MapLibrary const& library,
                Comm const& comm);

/// Opens the checkpoint of a query, and takes what its job wants of an adapter. Collective.
Checkpoint open_query(CheckpointQuery const& query, OpenChoice choice, Comm const& comm);
/// The same for a path, where the job may be null.
Checkpoint open_by_job(std::filesystem::path const& path, JobSpec const* job, OpenChoice choice,
                       Comm const& comm);

}  // namespace reshard
