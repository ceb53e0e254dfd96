#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/base/files/file_paths.hpp"
#include "core/base/text/json.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/containers/dcp/metadata/metadata.hpp"
#include "core/containers/dcp/object_look.hpp"
#include "core/containers/stored_records.hpp"
#include "core/containers/stored_table.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/formats/megatron/headers/shard.hpp"
#include "core/formats/run/state_inventory.hpp"
#include "core/formats/shapes.hpp"
#include "core/layout/mesh.hpp"

namespace reshard {

class Format;
struct Checkpoint;

namespace megatron {
struct RankStates;
}
namespace deepspeed {
struct RunState;
}
struct TorchOptimizer;

/// The owner of the stored tensors' names.
enum class NameOwner {
  family,    ///< those of the model's family, or of any program; a map of the family defines them
  megatron,  ///< Megatron-Core's; mcore.toml defines them
  logical    ///< the logical tensors of our own containers
};

/// The distribution of stored tensors over files.
enum class Storage {
  shares,  ///< each file has the content of one rank, with layers and experts numbered from 0
  whole,   ///< every tensor is one piece
  chunks   ///< boxes of tensors, in any files
};

/// The content of one pipeline chunk of one file, tensors [first_tensor, +tensor_count) of the
/// table, and the place of that share of the model.
struct SharePlace {
  std::uint32_t file = 0;
  MeshPlace at;           ///< of RankShares::mesh
  MeshPlace file_at;      ///< of RankShares::file_mesh
  std::size_t chunk = 0;  ///< pipeline chunk, in model order
  int chunk_in_file = 0;
  std::string label;  ///< "mp_rank_00_001", followed by ":model1" for one of several chunks
  std::size_t first_tensor = 0;
  std::size_t tensor_count = 0;
  /// The first place with an equal table, if an earlier one is known: the same names, dtypes and
  /// shapes at the same offsets of its file (StoredTable::repeat()).
  std::optional<std::size_t> alike = {};
};

/// Tensors [first, +count) of StoredTable::tensors.
struct TensorRun {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// Opaque state of the modules (…_extra_state) in a share.
struct ModuleStates {
  /// In file order. Shares with equal entries in their files share one list.
  std::shared_ptr<std::vector<megatron::ExtraEntry> const> entries;
  std::size_t place = 0;  ///< of RankShares::places
  SharedText dict;        ///< the key of its dict in the file: "model1"; "model" or "model0" in a
                          ///< file with one chunk
};

/// The labels of a logical tensor in our own containers.
struct LogicalLabels {
  std::vector<std::string> axes;
  std::string domain;
};

/// One value that is state of a parameter: the steps of an optimizer. Only targets that keep names
/// contain it.
struct StoredScalar {
  std::string name;
  DType dtype = DType::f32;
  ItemPlace item;
};

/// The files of ranks and their shares of the model. Storage::shares; else empty.
struct RankShares {
  std::vector<SharePlace> places;
  Mesh mesh;                                ///< of the places
  Mesh file_mesh;                           ///< the axes along which files stand
  std::string layout;                       ///< the mesh in words
  std::size_t chunks_per_file = 1;          ///< pipeline chunks
  std::vector<ModuleStates> module_states;  ///< none is empty
  std::optional<FoundShape> shape;   ///< of a Megatron checkpoint: the kind of folder that contains
                                     ///< it
  std::vector<std::string> defects;  ///< sentences with the reasons for which no job can read it
};

/// What our own containers state of their logical tensors. NameOwner::logical; else empty.
struct LogicalTable {
  std::vector<LogicalLabels> labels;  ///< parallel to the tensors
  std::string map;                    ///< the map of the family; "" for none
  Index vocab = 0;                    ///< rows of the vocabulary, without padding
  Index prediction_layers = 0;
  std::vector<TensorDigest> digests;  ///< those that are in the files
};

/// Properties of a save whose files have chunks of tensors and nested keys.
struct ChunkedSave {
  std::vector<dcp::ObjectLook> looks;  ///< parallel to the objects; empty: not inspected yet
  /// The paths of keys in a nested state dict, in its order; nullopt if there is none.
  std::optional<std::vector<std::pair<std::string, dcp::Path>>> paths;
  bool item_files = false;  ///< chunks lie in .distcp files, whose grid a target can take over
  bool flattened = false;   ///< some tensors are flattened on disk, and have their model shape here
  std::shared_ptr<dcp::CommonState const> common;  ///< Megatron's common state, if it was read
  bool has_common_file = false;                    ///< it is in a separate file
  /// Files and folders next to those of the tensors that are copied along, relative to the folder.
  std::vector<std::string> side_files;
};

/// config.json and the files that belong to it.
struct StoredConfig {
  std::optional<huggingface::Folder> beside;  ///< model files next to the weights, if their own
                                              ///< folder has any
  /// config.json that is a part of the checkpoint; null: that of Format::model_files().
  Json config;
  bool config_inside = false;  ///< it is in a container, not next to the weights
  std::string config_text;     ///< its bytes, if they are known
};

/// State of the optimizer, and of other programs.
struct StoredState {
  StateInventory inventory;  ///< as far as shown by names of files and headers
  /// Optimizer state in files of single ranks, if requested and of such a form.
  std::shared_ptr<megatron::RankStates const> rank_states;
  std::vector<StoredScalar> scalars;
  /// Settings of an optimizer that is not Megatron's, if requested.
  std::shared_ptr<TorchOptimizer const> torch_optimizer;
  std::shared_ptr<deepspeed::RunState const> deepspeed;  ///< of a DeepSpeed checkpoint
};

/// Other checkpoints that are read together with one. Their files are the last of its files.
struct JoinedCheckpoints {
  /// An adapter that is merged into the weights while they are read. Its files are the last, or all
  /// (Checkpoint::adapter_inside()).
  std::shared_ptr<Checkpoint const> adapter;
  /// The adapter of a wrapped model is merged or left out: its description stays behind.
  bool without_adapter = false;
  /// Checkpoints with the same tensors in the same boxes: what is read is the mean of all. Their
  /// files are in this order.
  std::vector<std::shared_ptr<Checkpoint const>> averaged;
  /// A file with rows of tokens that are added to the weights.
  std::shared_ptr<Checkpoint const> new_rows;
  /// The number of files of another checkpoint whose layers for multi-token prediction are in this
  /// one's table.
  std::size_t taken_files = 0;
};

/// Facts about the run that saved a checkpoint.
struct SavedRun {
  std::optional<std::int64_t> iteration;  ///< of the folder; nullopt for a release or no run
  std::int64_t stated_iteration = 0;      ///< in the files
  std::string newer_saves;  ///< a note if newer saves than the opened one exist; else ""
  Json args;                ///< of Megatron, if the headers contain them; else null (args_of())
};

/// Differences between an index of names and the files. All names are sorted.
struct IndexedNames {
  std::vector<SharedText> promised;  ///< in the index
  std::vector<SharedText> unlisted;  ///< in the files, and not in the index
};

/// The stamps of files, taken from the descriptor that read a file's header before the read; the
/// same on every rank. Both are parallel to the files.
struct ReadStamps {
  std::vector<FileStamp> taken;
  std::vector<int> rank;  ///< the rank that took the stamp
};

/// A checkpoint on disk by its headers, the same on every rank. Plain data: no payload was read.
/// `format` has the functions that depend on the format.
struct Checkpoint {
  Format const* format = nullptr;
  NameOwner names = NameOwner::family;
  Storage storage = Storage::whole;

  std::filesystem::path root;    ///< as the user named it; may contain a tracker
  std::filesystem::path folder;  ///< the folder of the files
  std::string place;             ///< the name of the table of tensors in messages: a file or the
                                 ///< folder
  std::string summary;           ///< "16 safetensors files", for reports
  FilePaths files;               ///< those with tensors
  ReadStamps stamps;
  StoredRecords records;  ///< zip records with weights, if files have any

  StoredTable stored;
  RankShares shares;
  LogicalTable logical;
  ChunkedSave chunked;
  StoredConfig model;
  StoredState state;
  SavedRun run;
  IndexedNames index;
  JoinedCheckpoints others;
  std::vector<std::string> warnings;

  /// The choice among equal tables (SharePlace::alike).
  enum class Which { first, last };
  /// The distinct tables of files: runs of StoredTable::tensors, ascending, with one of several
  /// equal tables.
  std::vector<TensorRun> different_tensors(Which which) const;

  /// Frees all names, dtypes and places of its tensors.
  void forget_tensors();

  /// Whether the adapter is in its own files: that of a model which peft has wrapped.
  bool adapter_inside() const {
    return others.adapter && !others.adapter->files.empty() &&
           others.adapter->files.front() == files.front();
  }
  /// How many of `files` are its own.
  std::size_t own_files() const {
    std::size_t joined = others.adapter && !adapter_inside() ? others.adapter->files.size() : 0;
    for (auto const& one : others.averaged) joined += one->files.size();
    if (others.new_rows) joined += others.new_rows->files.size();
    joined += others.taken_files;
    return files.size() - joined;
  }
};

}  // namespace reshard
