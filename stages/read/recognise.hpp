#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace reshard {

/// What a checkpoint on disk is read as.
enum class CheckpointKind {
  megatron,           ///< mp_rank folders
  huggingface,        ///< safetensors files of whole tensors
  dcp,                ///< .metadata and items
  boxed_safetensors,  ///< safetensors files of boxes, as torch's HuggingFaceStorageWriter leaves
                      ///< them before consolidation
  hdf5,               ///< an HDF5 file, or a folder of some
};

/// Which format a source must have; `found` takes what is there.
enum class SourceFormat { found, megatron, huggingface, dcp, hdf5 };

/// All that `path` may be by the names in it; empty: no checkpoint. Beside weights of another
/// format an HDF5 file is another program's. Boxes are told from whole tensors by kind_of() alone.
/// Throws what listing a folder throws.
std::vector<CheckpointKind> recognise(std::filesystem::path const& path);

/// The one that it is: every command asks this. An Error of kind source when it cannot be a
/// checkpoint (not there, a file of another kind, weights missing, another program's), or when it
/// may be several and `wanted` does not say which.
CheckpointKind kind_of(std::filesystem::path const& path,
                       SourceFormat wanted = SourceFormat::found);

/// The Errors of kind_of() for a path that cannot be a checkpoint.
void check_checkpoint_folder(std::filesystem::path const& path);

/// The folder of a file that is to be written, or one of the two above it, when that is a
/// checkpoint. HDF5 files make a folder one only beside a manifest of ours: a single file may lie
/// in any folder. `file` is absolute and normal. A folder that may not be listed is none.
std::optional<std::filesystem::path> enclosing_checkpoint(std::filesystem::path const& file);

}  // namespace reshard
