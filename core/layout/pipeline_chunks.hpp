#pragma once

#include <string>
#include <vector>

#include "core/layout/axis.hpp"

namespace reshard {

/// The content of one model chunk of a pipeline.
struct PipelineChunk {
  int rank = 0;              ///< of the pipeline
  int rank_chunk = 0;        ///< its number among the rank's chunks (virtual stages)
  std::vector<Run> decoder;  ///< global decoder positions, in stored order; may be empty
  std::vector<Run> mtp;      ///< multi-token-prediction depths
  bool embedding = false;
  bool head = false;  ///< output layer (and final norm)
};

/// The distribution of decoder layers over pipeline chunks; exactly one mode is used.
struct PipelineSpec {
  int ranks = 1;            ///< "pp" of job files
  int chunks_per_rank = 1;  ///< "vpp" of job files
  int decoder_layers = 0;
  int mtp_layers = 0;
  int first_stage_layers = -1;  ///< -1: not set
  int last_stage_layers = -1;
  bool account_for_embedding = false;
  bool account_for_loss = false;
  std::string layout{};  ///< "Ettt|(tt|)*29,m|L"; "" for none
};

/// The chunks in model order s = rank_chunk * ranks + rank. Sizes that do not divide, a layout
/// whose stage or layer count disagrees, are Errors of kind usage that name both numbers; if layers
/// cannot be spread they list the sizes for which they can. MTP depths belong to the chunk with the
/// head unless a layout string places them elsewhere.
std::vector<PipelineChunk> pipeline_chunks(PipelineSpec const& spec);

}  // namespace reshard
