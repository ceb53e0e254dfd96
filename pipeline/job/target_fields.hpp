#pragma once

#include <vector>

#include "pipeline/job/job_field.hpp"

namespace reshard::job {

/// Adds the keys of [target], with those of its layout, in the order of `--print-defaults`.
void add_target_fields(std::vector<Field>& out);

}  // namespace reshard::job
