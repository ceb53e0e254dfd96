#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/formats/dcp/item_layout.hpp"
#include "core/formats/targets/target_parts.hpp"

namespace reshard {

/// The weights and, for a model with slots, the optimizer states of a torch_dist or fsdp_dtensor
/// target, in the chunks that Megatron ranks of the requested layout would save.
struct DistTensors {
  std::vector<PipelineChunk> chunks;
  bool fsdp = false;      ///< Megatron-FSDP's keys instead of torch_dist's
  std::string root = {};  ///< of the language model's names
};

/// Whether every stored name with a leading layer axis has all decoder layers in it: else the
/// model's layers differ.
bool layers_are_alike(Side const& side, Index decoder_layers, std::string const& root = {});

/// Adds every stored tensor to the target.
void add_dist_tensors(DcpTarget& target, TargetParts const& parts, DistTensors const& dist);

/// The keys of a fsdp_dtensor target and their paths in the nested state dict.
std::vector<std::pair<std::string, dcp::Path>> fsdp_paths(TargetParts const& parts);

}  // namespace reshard
