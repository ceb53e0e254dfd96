#pragma once

#include "core/formats/checkpoint.hpp"

namespace reshard::dcp {

/// Restores the model's shapes of tensors that Megatron flattened for its optimizer: a key of
/// stored shape (f1, …, fn, m) stands for fragments of shape G / f, each stored as the flat ranges
/// of its chunks (docs/formats/torch-dist.md). Every range becomes up to 2n - 1 boxes. `shapes` are
/// G by key. Pre: payload offsets are known. Errors of kind source name the key and both shapes.
void unflatten(Checkpoint& checkpoint,
               std::vector<std::pair<std::string, std::vector<Index>>> const& shapes);

}  // namespace reshard::dcp
