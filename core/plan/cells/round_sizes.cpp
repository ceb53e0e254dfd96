#include "core/plan/cells/round_sizes.hpp"

#include <algorithm>

namespace reshard {
namespace {

constexpr std::uint64_t most_cell_bytes = 16U << 20;
/// The staging of rounds in addition to the bytes of their cells: gaps that are read along, and
/// alignment.
constexpr std::uint64_t slack_of_cell_bytes = 64U << 10;

}  // namespace

PlanLimits limits_for(std::uint64_t memory_bytes, std::uint64_t parts) {
  PlanLimits limits;
  limits.cell_bytes = std::min(most_cell_bytes, memory_bytes / 32);
  limits.most_cell_bytes = std::min(most_cell_bytes, memory_bytes / 8);
  limits.staging_bytes = memory_bytes / parts;
  return limits;
}

std::uint64_t staging_arena_bytes(Plan const& plan, CellRange cells, std::uint64_t memory_bytes,
                                  std::uint64_t growth) {
  std::uint64_t needed = least_staging_bytes;
  for (std::size_t i = cells.begin; i < cells.end && needed < memory_bytes; ++i)
    needed += growth * (plan.cells[i].staging_bytes + slack_of_cell_bytes);
  return std::min(needed, memory_bytes);
}

}  // namespace reshard
