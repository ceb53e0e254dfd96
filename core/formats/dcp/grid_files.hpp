#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/formats/dcp/item_layout.hpp"
#include "core/formats/dcp/options.hpp"
#include "core/formats/headers/chunk_grid.hpp"

namespace reshard::dcp {

/// The properties of a plain target's tensor that its grid uses.
struct GridTensor {
  std::string key;
  DType dtype = DType::u8;
  std::vector<Index> shape;
};

/// The boxes of every tensor, and the numbers of their files: box i of n in file i * files / n, in
/// the order of the ranks that will load them; tensors that are not cut one after the other, about
/// 4 GiB to a file. Pre: `grid` is not Kind::source. Errors as grid_boxes().
std::vector<std::vector<TargetBox>> boxes_in_files(ChunkGrid const& grid,
                                                   std::span<GridTensor const> tensors);

/// A warning for each rule of the grid that applies to no tensor.
void warn_of_idle_rules(ChunkGrid const& grid, std::span<GridTensor const> tensors,
                        std::vector<std::string>& warnings);

}  // namespace reshard::dcp
