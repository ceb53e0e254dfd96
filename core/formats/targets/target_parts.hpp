#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/formats/huggingface/config/config.hpp"
#include "core/formats/megatron/mcore/extra_state.hpp"
#include "core/formats/run/run_record.hpp"
#include "core/formats/targets/target.hpp"
#include "core/formats/targets/target_job.hpp"

namespace reshard {

/// The inputs of a target catalogue.
struct TargetParts {
  Model const* model = nullptr;
  Side const* side = nullptr;
  std::vector<std::optional<DType>> dtypes;  ///< by logical tensor, as in the source
  PlanRequest const* request = nullptr;
  bool as_stored = false;  ///< a dtype that a map states is for sources of other programs
};

/// The dtype under a stored name of the target: that of its logical tensors, which must agree and
/// be in the source (Errors of kind source). `slot`: the state of the parameters.
DType stored_dtype(TargetParts const& parts, StoredName const& name, SlotId slot = SlotId::weight);

namespace megatron {
class StateTarget;
}

/// The inputs of a Megatron target's shards other than tensors.
struct MegatronTarget {
  std::vector<PipelineChunk> chunks;
  RunRecord const* record = nullptr;  ///< whose args are kept; nullptr: made from `args`
  Json source_args;                   ///< those args; null without a record
  int release = 0;                    ///< of Megatron-Core, as TargetArgs::release
  std::vector<std::pair<std::string, Json>> args;  ///< attributes to set besides the parallel sizes
  ExtraStates* extras = nullptr;
  std::vector<std::pair<std::string, Json>> last_args;  ///< attributes to set after those
  megatron::StateTarget* state = nullptr;               ///< nullptr: no optimizer state
  bool distributed = false;                             ///< with distrib_optim.pt
};

struct MegatronFiles {
  std::vector<OpaqueCopy> opaque;  ///< state to copy
  std::size_t layouts = 0;         ///< the number of shards laid out: equal ones count once
};

/// Lays out every file of a Megatron target and fills files, texts, the target catalogue.
MegatronFiles plan_megatron_target(TargetDraft& job, TargetParts const& parts,
                                   MegatronTarget const& target);

/// The inputs of a Hugging Face folder other than tensors.
struct HuggingFaceTarget {
  std::optional<huggingface::Folder>
      reference;            ///< config, sidecars and shard map are taken from it
  std::string config_text;  ///< config.json without a reference
  std::vector<huggingface::FileMetadata> metadata = {};  ///< of the source's safetensors files
  std::string stem = "model";                            ///< of the names of weight files
};
/// Adds config.json and the files copied with it.
void add_sidecars(TargetDraft& job, HuggingFaceTarget const& target);
/// Adds these files to a target of another format: byte for byte in its folder `huggingface`, with
/// the index of the weights. None without a config.json.
void add_carried(TargetDraft& job, std::optional<huggingface::Folder> const& files);
/// The metadata of the source's safetensors files, in a file of `folder` of a target that has none.
void add_file_metadata(TargetDraft& job, std::optional<huggingface::Folder> const& files,
                       std::filesystem::path const& folder = {});
/// Distributes tensors over safetensors files and fills files, texts and the target catalogue.
/// `pieces(i)` are those of specs[i]; copies[i], unless `copies` is empty: specs[i] is a declared
/// copy of another tensor.
void place_in_shards(TargetDraft& job, std::span<TensorSpec const> specs, std::uint64_t shard_bytes,
                     HuggingFaceTarget const& target,
                     std::function<std::vector<Piece>(std::size_t)> const& pieces,
                     std::vector<bool> const& copies = {});

void plan_huggingface_target(TargetDraft& job, TargetParts const& parts,
                             HuggingFaceTarget const& target);

/// The config.json among a job's texts; nullptr if the target has none.
TextFile* config_text(TargetDraft& job);
/// Sets or removes a member of that config.json, if there is one.
void patch_config(TargetDraft& job, huggingface::ConfigPatch const& patch);

}  // namespace reshard
