#pragma once

#include "core/formats/checkpoint.hpp"

namespace reshard::dcp {

/// Gives tensors that Megatron flattened for its optimizer the shape that they have in the model: a
/// key of stored shape (f1, …, fn, m) stands for fragments of shape G / f, each kept as the flat
/// ranges that its chunks name (docs/formats/torch-dist.md). Every range becomes up to 2n - 1
/// boxes. `shapes` are G by key. Pre: payload offsets are known. Errors of kind source name the key
/// and both shapes.
void unflatten(Checkpoint& checkpoint,
               std::vector<std::pair<std::string, std::vector<Index>>> const& shapes);

}  // namespace reshard::dcp
