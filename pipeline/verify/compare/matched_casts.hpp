#pragma once

#include <string>

#include "pipeline/verify/compare/compare_sides.hpp"

namespace reshard {

/// target.dtype of the job that made a checkpoint, by its own manifest: "bf16"; "" where dtypes
/// were kept, and where there is no such manifest.
std::string recorded_dtype(Manifest const& manifest);

/// Changes of the source's model by the job that made a checkpoint, from its own manifest.
ModelChanges recorded_changes(Manifest const& manifest);

/// Where one side was made with target.dtype and the other was not, weights of the other are
/// compared in the dtype that they have in the first, rounded as that job rounds, and a note says
/// so. With `values` nothing is rounded: there is a note alone.
void match_casts(ComparedSides& sides, bool values);

}  // namespace reshard
