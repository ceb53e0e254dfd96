#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "core/formats/manifest/manifest.hpp"
#include "core/formats/manifest/sha256_sums.hpp"
#include "pipeline/job/job_spec.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/verify/scans/scan.hpp"

namespace reshard {

/// Whether the SHA-256 of each file is taken while a target is read back.
bool takes_sums(JobSpec const& spec);

/// Those of the plan's files as they were found. Pre: all of them were read completely, with sums.
std::vector<FileSum> sums_of(JobPlan const& plan, std::span<FileHashes const> found);

/// Writes the SHA256SUMS of a target: the manifest included, itself not. `sums` are those of all
/// other files. Gives its record. On one rank.
FileRecord write_sums(std::vector<FileSum> sums, std::string_view manifest,
                      std::filesystem::path const& staging);

}  // namespace reshard
