#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "pipeline/job_spec.hpp"

namespace reshard {

/// A file that a job writes besides its target must not lie in the job's source or target. Error of kind usage; `option` is what named the file.
void check_outside_job(std::filesystem::path const& file, std::string_view option, JobSpec const& spec,
                       std::span<std::filesystem::path const> source_files);

}  // namespace reshard
