#pragma once

#include "pipeline/verify/compare/compare_sides.hpp"

namespace reshard {

/// Whether the job that made a checkpoint quantised it (target.quant), by its own manifest.
bool has_quantised(Manifest const& manifest);

/// Where one side was made with target.quant and the other was not, opens both as the names of the
/// first: the other one is quantised while it is read, as that job would, and a note says so.
/// False, and nothing is opened, where that is not so. Errors: as make_job_plan().
bool match_quantised_target(ComparedSides& sides, CompareRequest const& request);

/// Differences between the quantization_config of the quantised side and the one that the job
/// writes. Pre: match_quantised_target() was true.
std::vector<ConfigDifference> quant_config_differences(ComparedSides const& sides);

}  // namespace reshard
