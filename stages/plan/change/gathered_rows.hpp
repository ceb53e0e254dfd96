#pragma once

#include <memory>
#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/source_view.hpp"

namespace reshard {

/// A tensor whose first axis counts tokens, as a matrix of this shape ({rows, columns}) in the
/// dtype of its first piece: the places of all its elements, ascending.
std::shared_ptr<GatheredTensor const> gathered_rows(Model const& model, Catalog const& catalog,
                                                    TensorId tensor, std::vector<Index> shape);

}  // namespace reshard
