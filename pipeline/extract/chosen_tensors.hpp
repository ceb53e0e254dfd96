#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/base/range.hpp"
#include "core/base/tables/integers.hpp"
#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// One index of an axis: of a tensor over it, only the part at this index is meant.
struct AxisIndex {
  std::string axis;
  Index index = 0;
};

/// "layer=3,expert=5". Errors: usage (another form, an axis twice).
std::vector<AxisIndex> parse_axis_indices(std::string_view text);

/// A logical tensor, or the part of it at some indices: a row-major array over the other axes.
struct ChosenTensor {
  TensorId id{};
  std::string name;  ///< "experts.gate"; of a part that a pattern names "layer.3.experts.gate"
  DType dtype = DType::u8;
  std::vector<Index> shape;
  std::vector<DomainAxis> axes;  ///< one per dimension of the shape, with the indices that it has
  std::vector<Piece> pieces;     ///< of the array, in elements
  std::string part_of;           ///< the weight whose quantised part it is; "" for none
};

/// The tensors whose names match one of the patterns (matches_glob) and which have every index in
/// `at`, in the order of the model. A pattern that matches a quantised weight means its parts. One
/// that begins with axes and indices means the parts there, each as an array: "layer.3.experts.*",
/// "layer.*.attn.q". `cuts`: of each array only these indices of its first dimensions.
/// Errors: usage (a pattern or an index that nothing has, an axis that a tensor counts in blocks, a
/// cut that leaves the array).
std::vector<ChosenTensor> choose_tensors(Model const& model, Catalog const& catalog,
                                         std::span<std::string const> patterns,
                                         std::span<AxisIndex const> at,
                                         std::span<HalfOpen<Index> const> cuts = {});

}  // namespace reshard
