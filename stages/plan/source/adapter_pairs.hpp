#pragma once

#include <functional>

#include "core/formats/source_model.hpp"
#include "stages/plan/source/low_rank_pairs.hpp"

namespace reshard {

/// What an adapter that was read through the maps adds to the weights of a model: its matrices are
/// the logical tensors beside their weights (adapter_of). `scale` is that of a rank. Numbers of
/// files begin at first_file. Errors of kind source: a weight or an axis that the model has not or
/// has in another size, a matrix that is not complete.
LowRankPairs adapter_pairs(SourceModel const& adapter, Model const& model,
                           std::function<float(Index rank)> const& scale, std::uint32_t first_file);

}  // namespace reshard
