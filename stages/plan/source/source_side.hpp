#pragma once

#include <map>
#include <memory>
#include <string>

#include "core/formats/checkpoint.hpp"
#include "core/mapping/side.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// What the names of a Megatron checkpoint say about how it was built.
struct MegatronTraits {
  std::string spec;        ///< "te" or "local": where norms are
  std::string form;        ///< "grouped", "sequential", "flat"
  std::string mtp_block;   ///< name of the inner layer of multi-token prediction
  Index padded_vocab = 0;  ///< rows of the embedding over all tp ranks; 0: no embedding
};
MegatronTraits megatron_traits(MegatronCheckpoint const& checkpoint);

/// The chunks of a Megatron source, in model order, for a model of so many layers.
std::vector<PipelineChunk> source_chunks(MegatronCheckpoint const& checkpoint, Index decoder_layers,
                                         Index mtp_layers);

/// Marks those of `may_lack` that the source lacks as not existing, then gives every piece of every
/// stored tensor of the source. `dequantise`: quantised weights (Model::schemes) are BF16 values,
/// computed while they are read. Errors of kind source: a stored tensor that no entry explains, a
/// required one that is missing, a shape that differs from the map's.
Catalog megatron_catalog(Model& model, Side const& side, MegatronCheckpoint const& checkpoint,
                         std::vector<PipelineChunk> const& chunks, std::vector<int> const& may_lack,
                         std::string const& map_names, bool dequantise = false);
Catalog huggingface_catalog(Model& model, Side const& side, HuggingFaceCheckpoint const& checkpoint,
                            std::string const& map_names, bool dequantise = false);

/// Pieces over row-major strides of `shape`, moved to the strides that a file's tensor has (a
/// non-contiguous view).
void restride(std::vector<Piece>& pieces, std::vector<Index> const& shape,
              std::vector<Index> const& strides);

}  // namespace reshard
