#pragma once

#include <cstddef>
#include <vector>

#include "core/base/file_segment.hpp"
#include "core/plan/plan.hpp"
#include "core/transport/comm.hpp"
#include "stages/write/edge_bytes.hpp"

namespace reshard {

/// Finds the pages of target files that a rank of this job writes as well as a lower one.
/// Collective; each rank gets its own.
EdgeBytes find_edges(Plan const& plan, Comm const& comm);

/// What all ranks have kept back, by file, on every rank; nothing where `edges` is null.
/// Collective.
std::vector<std::vector<FileSegment>> gathered_edges(EdgeBytes const* edges, std::size_t files,
                                                     Comm const& comm);

}  // namespace reshard
