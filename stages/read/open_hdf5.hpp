#pragma once

#include <filesystem>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// The HDF5 files of a checkpoint: the file itself, or the *.h5 and *.hdf5 files of a folder, by
/// name; may be empty. A link out of it is an Error.
std::vector<std::filesystem::path> hdf5_files(std::filesystem::path const& path);

/// Whether the path is an HDF5 file or a folder with some.
bool looks_like_hdf5_checkpoint(std::filesystem::path const& path);

/// Reads what HDF5 files hold: containers with logical tensors become SourceCheckpoint::logical;
/// all others, a dataset per stored tensor, SourceCheckpoint::dcp. Collective. Errors of kind
/// source, the same on every rank: what hdf5::read_file() refuses, parts that are missing or belong
/// to several checkpoints, a name in two files.
SourceCheckpoint open_hdf5(std::filesystem::path const& path, Comm const& comm);

}  // namespace reshard
