#pragma once

#include "pipeline/job/job_field.hpp"

namespace reshard::job {

/// The key source.format: its choices are all formats, and "auto".
keys::Row<JobSpec::Source> source_format();
/// The key target.format: its choices are the formats that are written.
keys::Row<JobSpec::Target> target_format();

}  // namespace reshard::job
