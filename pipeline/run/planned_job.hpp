#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/io/file_io.hpp"
#include "core/io/file_set.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/journal/job_identity.hpp"
#include "pipeline/publication/incremental/previous_target.hpp"
#include "pipeline/run/path/path_choice.hpp"
#include "pipeline/run/path/round_terms.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// A job up to the moment before anything is written: what its source is and what is to be done
/// with it, the same on every rank.
struct PlannedJob {
  int ranks = 1;  ///< for which it is planned: those that plan, or others (RunContext::ranks)
  std::shared_ptr<FileIo> source_io;  ///< reads the source's weights
  Checkpoint source;
  std::unique_ptr<FileSet> sources;  ///< its files: those that this rank reads are open, as far as
                                     ///< there is room
  /// The small files that describe the source and the model, as rank 0 read them; on rank 0.
  std::map<std::filesystem::path, FileStamp> described_by;
  std::size_t threads = 1;              ///< of each stage of this rank; not the same on every rank
  std::uint64_t clone_block_bytes = 0;  ///< of the target's file system, where it shares extents
  PlanLimits limits;
  JobPlan plan;
  std::optional<Manifest> manifest;  ///< of the source
  PreviousTarget previous;
  std::vector<RankDevices> devices;
  PathChoice path;
  JobIdentity identity;
  double header_seconds = 0;
  double plan_seconds = 0;
  std::uint64_t resident_bytes = 0;  ///< the most that this rank took until here
};

/// Reads the headers, plans, chooses how the bytes go, and makes sure that every rank has done the
/// same. Collective. `ranks`: that will carry it out; 0: those of `comm`.
PlannedJob plan_job(JobSpec const& spec, MapLibrary const& library, int ranks, Comm const& comm);

/// Bytes of all files with tensors.
std::uint64_t source_file_bytes(Checkpoint const& source);
std::uint64_t target_file_bytes(JobPlan const& plan);

/// Borrows the job's plan; to be asked for again when plan or path have changed.
RoundTerms round_terms(JobSpec const& spec, PlannedJob const& job, Comm const& comm);

}  // namespace reshard
