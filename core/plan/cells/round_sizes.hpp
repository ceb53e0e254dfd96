#pragma once

#include <cstdint>

#include "core/plan/plan.hpp"

namespace reshard {

/// The usual round: large enough for the disk, small enough that several are in flight.
inline constexpr std::uint64_t usual_round_bytes = 48U << 20;
/// With less, not even two small tensors fit.
inline constexpr std::uint64_t least_staging_bytes = 1U << 20;

/// Bounds of the cells for a rank with this much staging memory, of which a cell may take a
/// `parts`th: small enough that many fit, large enough that the plan stays small. In a very large
/// job two or three fit into a round.
PlanLimits limits_for(std::uint64_t memory_bytes, std::uint64_t parts = 4);

/// The staging memory of a rank that does these cells: memory_bytes, or less if its work needs
/// less, as fresh memory costs time. `growth`: the factor for the staging of the cells, see
/// staging_growth().
std::uint64_t staging_arena_bytes(Plan const& plan, CellRange cells, std::uint64_t memory_bytes,
                                  std::uint64_t growth = 1);

}  // namespace reshard
