#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/plan.hpp"

namespace reshard {

/// What a cell costs: bytes read and bytes written.
inline std::uint64_t weight_of(Cell const& cell) { return cell.target_bytes + cell.source_bytes; }
std::uint64_t weight_of(Plan const& plan, CellRange cells);
/// Payload that these cells write.
std::uint64_t target_bytes_of(Plan const& plan, CellRange cells);

/// Where these cells are cut into so many parts of about the same weight: the first cell of each
/// part, then cells.end. Cells whose bytes lie between each other's in a target file (a transposed
/// tensor, say) stay together where an eighth of a part allows it. A part may be empty. Pre: at
/// least one part.
std::vector<std::size_t> cut_cells(Plan const& plan, CellRange cells, std::size_t parts);

/// Whether the bytes of the cell before lie between those of this one in a target file. Pre: both
/// are there.
bool is_cut_between_bytes(Plan const& plan, std::size_t cell);

}  // namespace reshard
