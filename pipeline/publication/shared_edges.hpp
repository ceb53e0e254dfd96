#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/base/files/file_segment.hpp"
#include "core/plan/cells/rank_parts.hpp"
#include "core/plan/plan.hpp"
#include "core/transport/comm.hpp"
#include "stages/write/edge_bytes.hpp"

namespace reshard {

/// Finds the pages of target files that a rank of this job writes as well as a lower one.
/// Collective; each rank gets its own.
EdgeBytes find_edges(Plan const& plan, Comm const& comm);

/// The same where any rank may do any of these parts: pages that a part shares with a lower one.
/// Nothing where they are so many that not all can be kept back. Collective; every rank gets those
/// of all parts.
std::optional<EdgeBytes> find_edges(Plan const& plan, RankParts const& parts, Comm const& comm);

/// The bytes that all ranks have kept back of the files that this rank wants, by file; nothing
/// where `edges` is null. Takes the memory of the wanted bytes and at most 64 MiB, or the share of
/// one rank. Collective.
std::vector<std::vector<FileSegment>> gathered_edges(
    EdgeBytes const* edges, std::size_t files, std::function<bool(std::uint32_t)> const& wanted,
    Comm const& comm);

}  // namespace reshard
