#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/file.hpp"
#include "core/base/json.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/containers/dcp/metadata.hpp"
#include "core/containers/dcp/object_look.hpp"
#include "core/containers/stored_records.hpp"
#include "core/containers/stored_table.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/formats/megatron/shard.hpp"
#include "core/formats/shapes.hpp"
#include "core/formats/state_inventory.hpp"
#include "core/layout/mesh.hpp"

namespace reshard {

class Format;

namespace megatron {
struct RankStates;
}
namespace deepspeed {
struct RunState;
}
struct TorchOptimizer;

/// Whose names the stored tensors have.
enum class NameOwner {
  family,    ///< those of the model's family, or of any program: a map of the family gives them a
             ///< meaning
  megatron,  ///< Megatron-Core's: mcore.toml does
  logical    ///< the logical tensors of our own containers
};

/// How stored tensors lie in files.
enum class Storage {
  shares,  ///< each file holds what one rank has, under names that count from 0 in it
  whole,   ///< every tensor in one piece
  chunks   ///< boxes of tensors, in any files
};

/// What one pipeline chunk of one file holds, tensors [first_tensor, +tensor_count) of the table,
/// and where that share of the model stands.
struct SharePlace {
  std::uint32_t file = 0;
  MeshPlace at;           ///< of Checkpoint::mesh
  MeshPlace file_at;      ///< of Checkpoint::file_mesh
  std::size_t chunk = 0;  ///< pipeline chunk, in model order
  int chunk_in_file = 0;
  std::string label;  ///< "mp_rank_00_001", with ":model1" behind for one of several chunks
  std::size_t first_tensor = 0;
  std::size_t tensor_count = 0;
  /// The first place with an equal table, where one before is known to have it: the same names,
  /// dtypes and shapes at the same bytes of its file (StoredTable::repeat).
  std::optional<std::size_t> alike = {};
};

/// Tensors [first, +count) of StoredTable::tensors.
struct TensorRun {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// Opaque state of the modules (…_extra_state) in a share.
struct ModuleStates {
  /// In file order. Shares whose files tell the same of them have one list.
  std::shared_ptr<std::vector<megatron::ExtraEntry> const> entries;
  std::size_t place = 0;  ///< of Checkpoint::places
  SharedText dict;        ///< the key of the file's dict that holds it: "model1"; a file with
                          ///< one chunk may say "model" for "model0"
};

/// What a logical tensor of our own containers says about itself.
struct LogicalLabels {
  std::vector<std::string> axes;
  std::string domain;
};

/// One value that is state of a parameter: the steps that an optimizer has done. Only targets that
/// keep names hold it.
struct StoredScalar {
  std::string name;
  DType dtype = DType::f32;
  ItemPlace item;
};

/// A checkpoint on disk as its headers tell, the same on every rank. Plain data: no payload was
/// read. What only its format knows is asked of `format`.
struct Checkpoint {
  Format const* format = nullptr;
  NameOwner names = NameOwner::family;
  Storage storage = Storage::whole;

  std::filesystem::path root;    ///< as the user named it; may hold a tracker
  std::filesystem::path folder;  ///< that holds the files
  std::string place;             ///< what messages call the table of tensors: a file or the folder
  std::string summary;           ///< "16 safetensors files", for reports
  std::vector<std::filesystem::path> files;  ///< those with tensors
  /// Of each file, from a descriptor that read its header, before that; the same on every rank.
  std::vector<FileStamp> stamps;
  std::vector<int> stamped_by;  ///< which rank it was
  StoredRecords records;        ///< zip records with weights, where files have any

  StoredTable stored;
  std::vector<SharePlace> places;           ///< Storage::shares
  Mesh mesh;                                ///< of the shares
  Mesh file_mesh;                           ///< the axes along which files stand
  std::string layout;                       ///< the mesh in words
  std::size_t chunks_per_file = 1;          ///< pipeline chunks
  std::vector<LogicalLabels> labels;        ///< NameOwner::logical: parallel to the tensors
  std::vector<ModuleStates> module_states;  ///< Storage::shares; none is empty
  /// Optimizer state in files of single ranks, where it was asked for and has such a form.
  std::shared_ptr<megatron::RankStates const> rank_states;
  std::vector<StoredScalar> scalars;
  /// Settings of an optimizer that is not Megatron's, where they were asked for.
  std::shared_ptr<TorchOptimizer const> torch_optimizer;
  std::shared_ptr<deepspeed::RunState const> deepspeed;  ///< of a DeepSpeed checkpoint
  StateInventory state;                ///< as far as names of files and headers tell
  std::vector<dcp::ObjectLook> looks;  ///< parallel to the objects; empty: not inspected yet
  /// The paths of keys in a nested state dict, in its order; nothing where there is none.
  std::optional<std::vector<std::pair<std::string, dcp::Path>>> paths;
  bool item_files = false;  ///< chunks lie in .distcp files, whose grid a target can take over
  bool flattened = false;   ///< some tensors were flattened on disk, and were given their shape

  Json args;  ///< of Megatron, where the headers hold them; else null (args_of)
  std::optional<FoundShape> shape;            ///< of a Megatron checkpoint: whose folder it is in
  std::optional<huggingface::Folder> beside;  ///< what lies beside the weights, where their own
                                              ///< folder says so
  /// config.json that is a part of the checkpoint; null for none: then it is that of model_files().
  Json config;
  bool config_inside = false;   ///< it is in a container, not beside the weights
  std::string config_text;      ///< its bytes, where they are known
  std::string map;              ///< the map that a container names; "" for none
  Index vocab = 0;              ///< NameOwner::logical: rows of the vocabulary that mean something
  Index prediction_layers = 0;  ///< NameOwner::logical

  /// An adapter that is merged into the weights while they are read. Its files are the last of
  /// `files`.
  std::shared_ptr<Checkpoint const> adapter;
  /// Checkpoints with the same tensors in the same boxes: what is read is the mean of all. Their
  /// files are the last of `files`, in this order.
  std::vector<std::shared_ptr<Checkpoint const>> averaged;

  std::optional<std::int64_t> iteration;  ///< of the folder; nothing for a release or no run
  std::int64_t stated_iteration = 0;      ///< in the files
  /// Files and folders beside the tensors' that are copied along, relative to `folder`.
  std::vector<std::string> side_files;
  std::shared_ptr<dcp::CommonState const> common;  ///< Megatron's common state, where it was read
  bool has_common_file = false;                    ///< it is in a separate file

  std::vector<SharedText> promised;    ///< names that an index lists, sorted
  std::vector<TensorDigest> recorded;  ///< digests that are in the files themselves
  std::string newer_saves;  ///< a note where an older save was taken than others there; else ""
  std::vector<std::string> warnings;
  std::vector<std::string> defects;  ///< sentences: why no job can read it anyway

  /// Of tables that are alike (SharePlace::alike), which one is taken.
  enum class Which { first, last };
  /// What there is to see where files of many ranks say the same: runs of StoredTable::tensors,
  /// ascending, without the other tables that are like one of them.
  std::vector<TensorRun> different_tensors(Which which) const;

  /// Lets go of the names, dtypes and places of its tensors, wherever they are held.
  void forget_tensors();

  /// How many of `files` are its own.
  std::size_t own_files() const {
    std::size_t others = adapter ? adapter->files.size() : 0;
    for (auto const& one : averaged) others += one->files.size();
    return files.size() - others;
  }
};

}  // namespace reshard
