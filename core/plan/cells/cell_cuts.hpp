#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/plan.hpp"

namespace reshard {

/// The cost of a cell: bytes read plus bytes written.
inline std::uint64_t weight_of(Cell const& cell) { return cell.target_bytes + cell.source_bytes; }
std::uint64_t weight_of(Plan const& plan, CellRange cells);
/// Payload that these cells write.
std::uint64_t target_bytes_of(Plan const& plan, CellRange cells);

/// Cuts cells into `parts` parts of about the same weight: returns the first cell of each part,
/// then cells.end. Cells whose bytes interleave in a target file (a transposed tensor, say) stay
/// together if an eighth of a part allows it. A part may be empty. Pre: at least one part.
std::vector<std::size_t> cut_cells(Plan const& plan, CellRange cells, std::size_t parts);

/// Whether the bytes of the previous cell lie between those of this one in a target file. Pre: both
/// cells exist.
bool is_cut_between_bytes(Plan const& plan, std::size_t cell);

}  // namespace reshard
