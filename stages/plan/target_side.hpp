#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stages/plan/extra_state.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// What a target catalogue is made from.
struct TargetParts {
  Model const* model = nullptr;
  Side const* side = nullptr;
  std::vector<std::optional<DType>> dtypes;  ///< of every logical tensor, as the source has it
  TargetRequest const* request = nullptr;
};

/// The dtype under a stored name of the target: that of its logical tensors, which must agree and be in the source
/// (Errors of kind source).
DType stored_dtype(TargetParts const& parts, StoredName const& name);

/// What makes the shards of a Megatron target beyond its tensors.
struct MegatronTarget {
  std::vector<PipelineChunk> chunks;
  MegatronCheckpoint const* source = nullptr;      ///< whose args are kept; nullptr: made from `args`
  std::vector<std::pair<std::string, Json>> args;  ///< attributes to set besides the parallel sizes
  ExtraStates* extras = nullptr;
};

/// Lays out every file of a Megatron target and fills files, texts, the target catalogue; returns the opaque state to copy.
std::vector<OpaqueCopy> plan_megatron_target(JobPlan& job, TargetParts const& parts, MegatronTarget const& target);

/// What makes a Hugging Face folder beyond its tensors.
struct HuggingFaceTarget {
  std::optional<huggingface::Folder> reference;  ///< config, sidecars and shard map are taken from it
  std::string config_text;                       ///< config.json without a reference
};
void plan_huggingface_target(JobPlan& job, TargetParts const& parts, HuggingFaceTarget const& target);

}  // namespace reshard
