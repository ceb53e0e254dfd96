#pragma once

#include "core/formats/source_model.hpp"
#include "stages/plan/adapter/adapter_terms.hpp"
#include "stages/plan/adapter/low_rank_pairs.hpp"
#include "stages/plan/adapter/magnitudes.hpp"

namespace reshard {

/// The products by which an adapter that was read through the maps changes the weights of a model:
/// its matrices are the logical tensors beside their weights (adapter_of). Numbers of files begin
/// at first_file. Errors of kind source: a weight or an axis that the model has not or has in
/// another size, a matrix that is not complete, a refusal of `terms`. `magnitudes`: of a DoRA
/// adapter.
LowRankPairs adapter_pairs(SourceModel const& adapter, Model const& model,
                           AdapterTerms const& terms, std::uint32_t first_file,
                           Magnitudes const* magnitudes = nullptr);

}  // namespace reshard
