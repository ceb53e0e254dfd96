#pragma once

#include "tests/support/made_checkpoint.hpp"
#include "tests/support/sample_models.hpp"

namespace reshard::test {

/// The sample of a family, the first where there are several.
SampleModel sample_model(std::string const& family);

/// A whole small model as its format would store it, without files. `config` and `args` are those
/// of the sample; Megatron's has the sizes of its mesh in them.
MadeCheckpoint made_huggingface(SampleModel const& sample);
/// Its projections in FP8 codes with a scale for each tile of 16 x 16, without the scale of the
/// tensor `unscaled` and without the tensor `lacking`.
MadeCheckpoint made_fp8(SampleModel sample, std::string const& unscaled = "",
                        std::string const& lacking = "");
/// Transformer Engine's names, experts grouped.
MadeCheckpoint made_megatron(SampleModel const& sample, SampleMesh const& at = {});
/// torch_dist under Transformer Engine's names, layers stacked where `stacked`.
MadeCheckpoint made_torch_dist(SampleModel const& sample, bool stacked);

}  // namespace reshard::test
