#pragma once

#include <vector>

#include "core/plan/cells/round.hpp"
#include "pipeline/publication/begin_target.hpp"
#include "pipeline/publication/target_task.hpp"

namespace reshard {

/// Adds what is taken from the previous target without reading the source (PreviousTarget::taken)
/// to the sums of a target that is begun: complete blocks by their recorded CRC-64, the rest of
/// their files by reading the previous ones. reuse_files() brings the bytes. Returns the cells of
/// the whole plan that need not be carried out. Pre: task.plan is whole. An Error of kind io when
/// the previous target has changed. Collective.
std::vector<CellRange> begin_taken(TargetTask const& task, BegunTarget& begun);

}  // namespace reshard
