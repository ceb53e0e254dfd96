#pragma once

#include <utility>
#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// Where one stored tensor of the target is the matrix of several weights (the A of q, k and v), or
/// the scale of all that is fused, it is written from that of the first, and those of the others
/// must be equal: they become declared copies of it in the source, and are no tensors of the model
/// any more. Returns each of them with the first. Where they cannot be compared: an Error of kind
/// source.
std::vector<std::pair<TensorId, TensorId>> share_matrices(Model& model, Catalog& source,
                                                          Catalog& target);

}  // namespace reshard
