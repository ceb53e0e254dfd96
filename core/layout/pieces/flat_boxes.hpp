#pragma once

#include <span>
#include <vector>

#include "core/layout/pieces/placement.hpp"

namespace reshard {

/// A box and the offset (in elements) of its first element in the flat range that it was cut from.
struct FlatBox {
  TensorBox box;
  Index offset = 0;
};

/// The elements [begin, end) of a row-major tensor as boxes, in order: at most 2n - 1 for n
/// dimensions. Each box lies row-major in the range. Pre: 0 <= begin <= end <= the product of
/// `shape`.
std::vector<FlatBox> flat_boxes(std::span<Index const> shape, Index begin, Index end);

}  // namespace reshard
