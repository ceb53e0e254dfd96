#pragma once

#include <cstdint>

#include "core/plan/plan.hpp"

namespace reshard {

/// The usual round: large enough for the disk, small enough that several are in flight.
inline constexpr std::uint64_t usual_round_bytes = 48U << 20;
/// Below this not even small tensors fit beside each other.
inline constexpr std::uint64_t least_staging_bytes = 1U << 20;

/// Bounds of the cells where a rank has this much staging memory, of which a cell may take a
/// `parts`th: small beside it, so that many fit, and large enough that the plan stays small. In a
/// very large job two or three fit into a round.
PlanLimits limits_for(std::uint64_t memory_bytes, std::uint64_t parts = 4);

/// The staging memory of a rank that does these cells: what it may take, or less when it has less
/// to do. Fresh memory costs time. `growth`: how many times the staging of a cell a round may need.
std::uint64_t staging_arena_bytes(Plan const& plan, CellRange cells, std::uint64_t memory_bytes,
                                  std::uint64_t growth = 1);

}  // namespace reshard
