#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/data_layout.hpp"
#include "core/containers/file_frame.hpp"
#include "core/formats/chunk_grid.hpp"
#include "core/formats/format_id.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/megatron/shard_name.hpp"
#include "core/formats/run_record.hpp"
#include "core/mapping/side.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// torch_dist: one key for all layers with the layer axis in front, or keys of their own.
enum class LayerKeys { automatic, stacked, separate };

/// What happens to stored tensors that a map lists under `keep`.
enum class Unmapped { refuse, keep, drop };

/// How optimizer state lies in mp_rank folders: inside the model files, or in those of Megatron's
/// distributed optimizer.
enum class OptimizerFiles { automatic, in_model_files, distributed };

/// What a run that loads mp_rank folders is started with: its gradient buckets decide where state
/// lies in files of the distributed optimizer.
struct OptimizerRequest {
  OptimizerFiles files = OptimizerFiles::automatic;  ///< as in the source
  std::optional<bool> overlap_grad_reduce;           ///< nothing: as args say
  Index bucket_elements = 0;                         ///< --ddp-bucket-size; 0: as args say
  Index data_parallel = 0;                           ///< 0: as args say
};

/// The class of Megatron's that loads a target: GPTModel, or HybridModel, in which attention and
/// MLP of a layer are two layers.
enum class TargetModel { as_source, gpt, hybrid };

/// The program that starts from a torch_dist target. Megatron-Bridge reads what describes the model
/// from run_config.yaml, Megatron-LM from args; ms-swift has names of its own for some families and
/// wants a number for the iteration, as Megatron-Bridge does. as_source: settings of the source's
/// program go along.
enum class TargetProgram { as_source, megatron_lm, megatron_bridge, ms_swift };

/// What the target shall be, independent of how a job file says it.
struct TargetRequest {
  FormatId format = FormatId::megatron;  ///< never automatic
  PipelineSpec pipeline;  ///< ranks, chunks, first/last stage layers or layout string; layer counts
                          ///< are filled in
  Mesh mesh;              ///< of the target
  std::string spec;       ///< "te", "local", or "" for as the source, else te
  std::string form;       ///< "grouped", "sequential", or "" for as the source, else grouped
  TargetModel model = TargetModel::as_source;
  int release = 0;  ///< of Megatron-Core: 19 for 0.19; 0: that of the source, else the newest
  TargetProgram program = TargetProgram::as_source;  ///< torch_dist
  std::filesystem::path
      folder;  ///< absolute, where the target will be; empty where none is written
  megatron::NameStyle style = megatron::NameStyle::megatron;
  std::filesystem::path reference;  ///< Hugging Face folder; empty for none
  std::uint64_t shard_bytes = 0;    ///< of safetensors files: the largest
  std::uint64_t part_bytes = 0;     ///< of HDF5 files: the largest
  ChunkGrid grid;                   ///< dcp
  std::uint64_t chunk_bytes = 0;    ///< torch_dist, fsdp_dtensor: the largest chunk, aimed at
  LayerKeys layers = LayerKeys::automatic;  ///< torch_dist
  OptimizerRequest optimizer;               ///< mp_rank folders
  std::string source_prefix;  ///< dcp sources: only keys with this prefix, which is cut off
  std::string target_prefix;  ///< dcp: put before every key
  std::string target_map;     ///< dcp: the map whose names the tensors get; "": those of the source
  std::filesystem::path source_config;  ///< config.json (or its folder) that describes the source
  Json base_config;  ///< of the model that an adapter belongs to, where no file states it; or null
  Index source_tp = 1;          ///< tensor parallelism of a Megatron Lite source
  Index source_etp = 1;         ///< expert tensor parallelism of a Megatron Lite source
  std::string map = "auto";     ///< model.map
  bool axes_by_config = false;  ///< a config.json decides about axes, not args
  Index true_vocab_size = 0;
  Unmapped unmapped = Unmapped::refuse;
  /// How adapters of a Megatron target are named: one of [adapter] of mcore.toml; "" for as the
  /// source, else the first.
  std::string adapter;
  /// Adapters of q, k and v, of gate and up: apart or in common; nothing for as the source, else
  /// apart.
  std::optional<bool> adapters_apart;
  std::string
      adapter_alpha;  ///< lora_alpha, a number, where the source does not state it; "": none
  std::vector<std::string> frozen;  ///< patterns of Megatron's names: without optimizer state
  ForeignClasses foreign_classes = ForeignClasses::refuse;
  bool objects_unread = false;  ///< objects of a DCP source are not checked
  bool dequantise = false;      ///< quantised weights become BF16
  bool drop_optimizer = false;
  bool drop_rng = false;
  bool true_rows = false;     ///< vocabulary rows that are known to be padding are left out
  bool carries_rows = false;  ///< of a job: a named family, too, has the vocabulary rows that args
                              ///< count
  DataLayout data_layout = DataLayout::usual;
  std::string tool_version;                        ///< for the provenance that a target holds
  std::vector<std::filesystem::path> map_folders;  ///< where map files are looked for
  std::string names = "auto";  ///< whose names a language model and the parts beside it have:
                               ///< [kept.NAME] of a map, "huggingface", or "auto"
};

/// A file of the target with tensors: its byte layout is complete before any byte moves.
struct TargetFile {
  std::filesystem::path path;  ///< relative to the target
  std::uint64_t size_bytes = 0;
  MeshPlace at = {};  ///< of TargetDraft::file_mesh; empty where files have no places
  std::shared_ptr<FileFrame const> frame;  ///< what it has around its tensors; borrows nothing
};

/// A small file whose bytes are known now. `mark`: written last, it makes the checkpoint count.
struct TextFile {
  std::filesystem::path path;
  std::string text;
  bool mark = false;
  std::function<std::string()>
      make;  ///< of large files, or many alike: makes `text` when written; borrows nothing
};

/// A file or folder that is copied along as it is.
struct SideCopy {
  std::filesystem::path from;
  std::filesystem::path to;  ///< relative to the target
};

/// What a format decides about a target: the same on every rank.
struct TargetDraft {
  DataLayout data_layout = DataLayout::usual;  ///< as requested
  Catalog target;
  std::vector<TargetFile> files;
  Mesh file_mesh;      ///< along which files stand; without axes where they do not
  std::string layout;  ///< that mesh in words, with what no file has a number for
  std::vector<TextFile> texts;
  std::vector<OpaqueCopy> opaque;  ///< what the plan copies besides tensors
  std::vector<int> target_adds;    ///< what stored values of the target have over logical ones, by
                                   ///< logical tensor; empty: nothing
  std::string master_slot;         ///< what readers of the target call the slot of master weights;
                                   ///< "": as the source does
  std::vector<TensorId> own_masters;  ///< F32 weights that the target has in that slot, too
  std::vector<std::string> frozen;    ///< parameters without optimizer state, which a reader of the
                                      ///< target has to be told (model.frozen)
  std::optional<huggingface::Folder> reference;  ///< whose sidecars are copied
  std::filesystem::path
      reference_to;  ///< and into which folder of the target; "" for the target itself
  std::vector<SideCopy> side_copies;
  std::vector<std::string> warnings;
  /// What Megatron's args of the target will say, and how its names follow from them: the plan
  /// proves that both agree. Nothing for targets without args.
  struct Stated {
    Json args;
    SideOptions options;
  };
  std::optional<Stated> stated;
};

}  // namespace reshard
