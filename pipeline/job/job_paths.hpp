#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "core/formats/checkpoint.hpp"
#include "pipeline/job/job_spec.hpp"

namespace reshard {

/// A file that a job writes besides its target must not lie in the job's source or target. Error of
/// kind usage; `option` is what named the file.
void check_outside_job(std::filesystem::path const& file, std::string_view option,
                       JobSpec const& spec, std::span<std::filesystem::path const> source_files);

/// Links and further mounts can lead from the source into the target: replacing the target would
/// then destroy what is read. Error of kind usage when the target holds a file of the source, or
/// lies in a folder of the source.
void check_source_apart(JobSpec const& spec, Checkpoint const& source);

}  // namespace reshard
