#pragma once

#include <vector>

#include "core/layout/pieces/piece.hpp"

namespace reshard {

/// Pieces over row-major strides of `shape`, moved to the strides that a file's tensor has (a
/// non-contiguous view).
void restride(std::vector<Piece>& pieces, std::vector<Index> const& shape,
              std::vector<Index> const& strides);

}  // namespace reshard
