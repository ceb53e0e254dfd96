#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "pipeline/job/job_spec.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/verify/scans/scan.hpp"

namespace reshard {

/// Facts about a target's contents when its manifest is made.
struct TargetContents {
  std::span<std::uint64_t const> digests;  ///< by tensor of the plan
  std::span<FileRecord const> small_files;
  bool read_back = false;
  std::span<FileHashes const> files;           ///< as they were read back, by the plan's numbers
  std::span<FileStamp const> stamps;           ///< of them; none where no job will ask for them
  std::uint64_t block_bytes = 0;               ///< of `blocks`
  std::span<FileBlockSums const> blocks = {};  ///< without paths, likewise
};

/// The source in the manifest.
struct SourceFacts {
  std::string_view format;
  std::string_view layout;
  Json const& record;  ///< more members
};

/// The tensors of the reshard.json of a target. `digests`: by tensor of the plan.
std::vector<TensorDigest> recorded_tensors(JobPlan const& plan,
                                           std::span<std::uint64_t const> digests);

/// The reshard.json of a target.
Manifest target_manifest(JobSpec const& spec, JobPlan const& plan, TargetContents const& contents,
                         SourceFacts const& source);

}  // namespace reshard
